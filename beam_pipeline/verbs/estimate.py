"""`prepare --estimate`: what a run would make, need and cost, from a small sample of its input."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.formats.base import DocumentFormat, RowFormat
from beam_pipeline.formats.choice import format_for
from beam_pipeline.options.option_values import PRICES
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.routing import Layout
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.plan import Plan
from beam_pipeline.sources.reading import describe
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.sources.windows import Window, is_at_beginning, windows
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.support import filesystem, memory
from beam_pipeline.support.amounts import counted, human_bytes, megabytes
from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.template import Template

_SAMPLED_SHARE = 1 / 200
_LEAST, _MOST = 8 << 20, 64 << 20  # bytes
_ENCODED_ROWS = 4096
_SECONDS_TO_START = 5  # imports, Beam's graph, and at the end the report

# Dataflow. docs/dataflow.md explains these figures.
_BYTES_PER_VCPU_SECOND = 10e6
_GIGABYTES_PER_VCPU = 4


@dataclass(frozen=True)
class Estimate:
    """What a run would make, all splits together."""

    sample_bytes: int
    """Bytes of text in the sample."""
    windows: int
    """The number of places of the input that the sample is from."""
    documents: float
    tokens: float
    document_error: float
    """Standard error of `documents`, as a share of them. 0 if the sample is the whole input."""
    token_error: float
    """Standard error of `tokens`, likewise."""
    rows: float
    record_bytes: float
    """Average size of a row's record in its file."""
    seconds: float
    """How long reading, tokenizing, packing and encoding would take in this process."""
    second_error: float
    """Standard error of `seconds`, as a share of them."""
    longest_bytes: int
    """Bytes of UTF-8 of the longest document in the sample."""
    of_beginnings: bool
    """Whether some windows are beginnings of files or row groups: what follows can differ, so errors are unknown."""
    of_one_place: bool
    """Whether the sample is a part of the input from a single place, so errors are unknown."""


def estimate(
    config: PrepareConfig,
    planned: Plan,
    tokenizer: TokenizerDescription,
    *,
    template: Template,
    pad_id: int,
    threads: int,
) -> Estimate:
    """Prepares a sample of the input in memory. Does not detect duplicates.

    Args:
        config: The run's options.
        planned: Its input.
        tokenizer: Its tokenizer.
        template: The ids around each document.
        pad_id: The id that pads rows.
        threads: Number of threads of the tokenization engine.

    Raises:
        DataError: If the sample has no documents, or has a bad record that would end the run.
    """
    tokenizing = DocumentTokenizer(
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        template=template,
        engine=config.engine,
        parse_special_tokens=config.parse_special_tokens,
        control_ids=tokenizer.control_ids,
        threads=threads,
    )
    shard_format = format_for(config, tokenizer.vocab_size)
    packing = {"packing": config.packing, "max_length": config.max_length, "pad_id": pad_id}
    wanted = min(max(int(planned.bytes * _SAMPLED_SHARE), _LEAST), _MOST)
    sample = windows(planned, config.input, sample_bytes=wanted, seed=config.seed)
    found: list[_Sums] = []
    encoded: list[RowBlock | DocumentBlock] = []
    encoded_rows = 0
    pieces = _pieces(sample, found)

    def on_bad(record: BadRecord) -> None:
        if config.on_bad_record == "fail":
            raise DataError(describe(found[-1].window.unit, record))

    a_row_each = config.packing in ("pad", "none")
    # With a document per row, each piece has rows of its own. Otherwise few documents would fill rows as all do.
    for group in ([piece] for piece in pieces) if a_row_each else [pieces]:
        rows = UnitRows(
            tokenizer=tokenizing,
            choose=SplitChooser((("all", 1.0),), config.seed, config.split_by),
            packers=[Packer(**packing, keep_starts=config.keep_starts)],
            vocab_size=tokenizer.vocab_size,
            on_bad=on_bad,
        )
        [statistics] = rows.statistics
        for _, block in rows.blocks(_counted(group, statistics)):
            if encoded_rows < _ENCODED_ROWS:
                most = _ENCODED_ROWS - encoded_rows
                some = block.take(slice(most)) if isinstance(block, RowBlock) else block.cut(0, most)
                encoded.append(some)
                encoded_rows += len(some)
        if a_row_each:
            [(sums, _, share)] = group
            sums.rows += share * statistics.rows
    if not any(sums.tokens for sums in found):
        raise DataError("the sample contains no documents, only blank records or none at all")
    began = time.perf_counter()
    if encoded:
        encoded_bytes = _encoded_size(shard_format, encoded)
    else:  # less than a row
        encoded_rows, encoded_bytes = 1, config.max_length * (2 + config.attention_mask)
    encoding = time.perf_counter() - began
    whole = wanted >= planned.bytes
    planned_bytes = np.array([sums.window.planned for sums in found])
    weights = np.array([sums.window.weight for sums in found])

    def total(values: list[float]) -> tuple[float, float]:
        """Returns the sum of these sums over windows, extrapolated to the input, and its standard error as a share."""
        if whole:
            return sum(values), 0.0
        per_byte = np.array(values) / planned_bytes
        mean = np.average(per_byte, weights=weights)
        if len(found) == 1:
            return planned.bytes * mean, 0.0
        deviation = np.sqrt((weights**2 * (per_byte - mean) ** 2).sum() * len(found) / (len(found) - 1))
        return planned.bytes * mean, deviation / weights.sum() / mean

    of_beginnings = not whole and any(is_at_beginning(sums.window.unit) for sums in found)
    seconds, second_error = total([sums.seconds for sums in found])
    tokens, token_error = total([sums.tokens for sums in found])
    documents, document_error = total([sums.documents for sums in found])
    if config.packing == "concat":
        made = tokens / config.max_length
    elif a_row_each:
        made, _ = total([sums.rows for sums in found])
    else:
        made = statistics.rows * (tokens / statistics.tokens)
    return Estimate(
        sample_bytes=sum(sums.bytes for sums in found),
        windows=len(found),
        documents=documents,
        document_error=document_error,
        tokens=tokens,
        token_error=token_error,
        rows=made,
        record_bytes=encoded_bytes / encoded_rows,
        seconds=seconds + encoding / encoded_rows * made,
        second_error=second_error,
        longest_bytes=max(sums.longest for sums in found),
        of_beginnings=of_beginnings,
        of_one_place=not whole and len(found) == 1,
    )


@dataclass
class _Sums:
    """Sums over the documents of a window, each multiplied by the share of it that is in the window."""

    window: Window
    seconds: float
    """How long reading, tokenizing and packing took, for the shares of the documents that are in the window."""
    bytes: int = 0
    longest: int = 0
    """Bytes of the longest document."""
    documents: float = 0
    tokens: float = 0
    rows: float = 0
    """Of rows with a single document."""


_Piece = tuple[_Sums, DocumentBatch, float]


def _pieces(sample: Iterable[Window], found: list[_Sums]) -> Iterator[_Piece]:
    """Yields the windows' documents, with the sums to add them to and their share. Appends the sums to `found`."""
    for window in sample:
        size = window.text_bytes
        within = sum(share * int(batch.bytes.sum()) for batch, share in window.pieces)
        sums = _Sums(window, window.seconds * (within / size if size else 1.0), size)
        found.append(sums)
        for batch, share in window.pieces:
            sums.longest = max(sums.longest, int(batch.bytes.max(initial=0)))
            yield sums, batch, share
        window.pieces.clear()


def _counted(pieces: Iterable[_Piece], statistics: SplitStatistics) -> Iterator[DocumentBatch]:
    """Yields the documents, and counts what `statistics` says of them."""
    for sums, batch, share in pieces:
        documents, tokens = statistics.documents, statistics.tokens
        began = time.perf_counter()
        yield batch
        sums.seconds += share * (time.perf_counter() - began)
        sums.documents += share * (statistics.documents - documents)
        sums.tokens += share * (statistics.tokens - tokens)


def _encoded_size(
    shard_format: RowFormat | DocumentFormat, blocks: Sequence[RowBlock] | Sequence[DocumentBlock]
) -> int:
    """Encodes blocks as one shard. Returns its size in bytes."""
    if isinstance(shard_format, RowFormat):
        return sum(map(len, shard_format.encode(RowBlock.concatenate(blocks))))
    file, index = io.BytesIO(), io.BytesIO()  # the index stays empty if the format has none
    shard_format.write(blocks, file, index)
    return file.tell() + index.tell()


def describe_estimate(made: Estimate, config: PrepareConfig, planned: Plan, vocab_size: int) -> Iterator[str]:
    """Yields the lines of the estimate for the user.

    Args:
        made: The estimate.
        config: The run's options.
        planned: Its input.
        vocab_size: The number of the tokenizer's ids.
    """
    yield (
        f"sample: {megabytes(made.sample_bytes)} of text from {counted(made.windows, 'place')} of the input's "
        f"{megabytes(planned.bytes)}"
    )
    yield (
        f"all splits: about {counted(round(made.documents), 'document')}{_margin(made.document_error)}, "
        f"{made.tokens:,.0f} tokens{_margin(made.token_error)}, "
        f"{human_bytes(made.rows * made.record_bytes)}{_margin(made.token_error)}"
    )
    if made.of_beginnings:
        yield (
            "compressed files and row groups are sampled from their beginning only: if what follows differs, so do all "
            "figures, by more than any margin given here"
        )
    elif made.of_one_place:
        yield "the sample is from one place only, so the margins are unknown"
    for name, share in config.splits:
        rows = math.ceil(made.rows * share)
        layout = Layout(
            split=name,
            num_rows=rows,
            shard_size=config.shard_size,
            requested_shards=config.num_shards,
            shuffle=config.shuffle,
            seed=config.seed,
        )
        made_of = (
            f"{counted(rows, 'row')} of {config.max_length}"
            if config.max_length
            else counted(rows, "document")
        )
        yield (
            f"{name}: about {made.tokens * share:,.0f} tokens, {made_of}, "
            f"{counted(layout.num_shards, 'shard')}, {human_bytes(rows * made.record_bytes)}"
        )
    if config.dedup == "exact":
        yield "duplicates, which --dedup exact leaves out, are counted here: a sample does not show them"
    id_bytes = id_dtype(vocab_size).itemsize
    staged = (made.rows * config.max_length if config.max_length else made.tokens) * id_bytes
    seconds = made.seconds + _SECONDS_TO_START
    text_bytes = max(planned.bytes, made.tokens * memory.TEXT_BYTES_PER_TOKEN)
    needs = needed_memory(config, int(text_bytes), vocab_size, longest_bytes=made.longest_bytes)
    yield (
        f"on this machine: about {_duration(seconds)}{_margin(made.second_error)}, {human_bytes(needs)} of memory (the "
        f"longest document of the sample has {human_bytes(made.longest_bytes)}; a longer one needs more), and while it "
        f"runs {human_bytes(staged)}{_margin(made.token_error)} more in the output folder"
    )
    prices = PRICES | dict(config.prices)
    hours = planned.bytes / _BYTES_PER_VCPU_SECOND / 3600
    shuffle = 2 * staged  # each byte is written and read
    workers = hours * (prices["vcpu_hour"] + _GIGABYTES_PER_VCPU * prices["gb_hour"])
    yield (
        f"on Dataflow: about {hours:,.2g} vCPU-hours and {human_bytes(shuffle)} through the shuffle: "
        f"${workers + shuffle / 1e9 * prices['shuffle_gb']:,.2f} (--prices)"
    )


def _margin(error: float) -> str:
    """Returns the range that contains the true value in 19 of 20 cases, if a sum has such a standard error."""
    return f" ± {2 * error:.1%}" if error > 0.00025 else ""


def likely_records(config: PrepareConfig, input_bytes: int) -> int:
    """Returns about how many records the largest shard has; 0 for documents, which are not gathered in memory.

    Args:
        config: The run's options.
        input_bytes: Bytes of text.
    """
    if config.max_length is None:
        return 0
    share = max(share for _, share in config.splits)
    rows = math.ceil(share * input_bytes / memory.TEXT_BYTES_PER_TOKEN / config.max_length)
    return min(config.shard_size, rows) if config.shard_size else math.ceil(rows / config.num_shards)


def needed_memory(config: PrepareConfig, input_bytes: int, vocab_size: int, *, longest_bytes: int) -> int:
    """Returns the estimated peak memory of a run in this process, in bytes.

    Args:
        config: The run's options.
        input_bytes: Bytes of text.
        vocab_size: The number of the tokenizer's ids.
        longest_bytes: Bytes of the longest document that is known.
    """
    id_bytes = id_dtype(vocab_size).itemsize
    return memory.needed(
        input_bytes=input_bytes,
        id_bytes=id_bytes,
        shard_bytes=likely_records(config, input_bytes) * (config.max_length or 0) * id_bytes,
        statistics_bytes=8 * vocab_size * len(config.splits),
        longest_bytes=longest_bytes,
        groups_rows=not filesystem.is_local(config.output) and config.packing != "none",
        groups_hashes=config.dedup == "exact",
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
