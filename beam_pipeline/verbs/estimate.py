"""`prepare --estimate`: the output, time, memory and cost of a run, estimated from a small sample of its input."""

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
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.reading import describe
from beam_pipeline.sources.units import BadRecord, DocumentBatch
from beam_pipeline.sources.windows import SampleWindow, is_at_beginning, windows
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.support import filesystem, memory
from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.template import Template

_SAMPLED_SHARE = 1 / 200
_LEAST, _MOST = 8 << 20, 64 << 20  # bytes
_ENCODED_ROWS = 4096


@dataclass(frozen=True)
class Estimate:
    """The estimated output of a run, all splits together."""

    sample_bytes: int
    """Bytes of text in the sample."""
    windows: int
    """The number of places of the input in the sample."""
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
    """The time that reading, tokenizing, packing and encoding would take in this process."""
    second_error: float
    """Standard error of `seconds`, as a share of them."""
    longest_bytes: int
    """Bytes of UTF-8 of the longest document in the sample."""
    has_beginnings: bool
    """Whether some windows are beginnings of files or row groups: the rest can differ, so errors are unknown."""
    has_one_place: bool
    """Whether the sample is a part of the input from a single place, so errors are unknown."""


def estimate(
    config: PrepareConfig,
    planned: InputPlan,
    tokenizer: TokenizerDescription,
    *,
    template: Template,
    pad_id: int,
    threads: int,
) -> Estimate:
    """Prepares a sample of the input in memory. Does not detect duplicates.

    Args:
        config: The run's options.
        planned: The run's input.
        tokenizer: The run's tokenizer.
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
    sample_bytes = min(max(int(planned.bytes * _SAMPLED_SHARE), _LEAST), _MOST)
    sample = windows(planned, config.input, sample_bytes=sample_bytes, seed=config.seed)
    window_sums: list[_Sums] = []
    encoded: list[RowBlock | DocumentBlock] = []
    encoded_rows = 0
    pieces = _pieces(sample, window_sums)

    def on_bad(record: BadRecord) -> None:
        if config.on_bad_record == "fail":
            raise DataError(describe(window_sums[-1].window.unit, record))

    has_own_rows = config.packing in ("pad", "none")
    # If each document has its own rows, each piece is packed separately. Otherwise, all pieces are packed together,
    # since few documents do not fill rows as well as many.
    for group in ([piece] for piece in pieces) if has_own_rows else [pieces]:
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
                num_missing = _ENCODED_ROWS - encoded_rows
                part = (
                    block.take(slice(num_missing))
                    if isinstance(block, RowBlock)
                    else block.cut(0, num_missing)
                )
                encoded.append(part)
                encoded_rows += len(part)
        if has_own_rows:
            [(sums, _, share)] = group
            sums.rows += share * statistics.rows
    if not any(sums.tokens for sums in window_sums):
        raise DataError("the sample contains no documents, only blank records or none at all")
    began = time.perf_counter()
    if encoded:
        encoded_bytes = _encoded_size(shard_format, encoded)
    else:  # less than a row
        encoded_rows, encoded_bytes = 1, config.max_length * (2 + config.attention_mask)
    encoding = time.perf_counter() - began
    whole = sample_bytes >= planned.bytes
    planned_bytes = np.array([sums.window.planned for sums in window_sums])
    weights = np.array([sums.window.weight for sums in window_sums])

    def total(values: list[float]) -> tuple[float, float]:
        """Returns the sum of these sums over windows, extrapolated to the input, and its standard error as a share."""
        if whole:
            return sum(values), 0.0
        per_byte = np.array(values) / planned_bytes
        mean = np.average(per_byte, weights=weights)
        if len(window_sums) == 1:
            return planned.bytes * mean, 0.0
        deviation = np.sqrt(
            (weights**2 * (per_byte - mean) ** 2).sum() * len(window_sums) / (len(window_sums) - 1)
        )
        return planned.bytes * mean, deviation / weights.sum() / mean

    has_beginnings = not whole and any(is_at_beginning(sums.window.unit) for sums in window_sums)
    seconds, second_error = total([sums.seconds for sums in window_sums])
    tokens, token_error = total([sums.tokens for sums in window_sums])
    documents, document_error = total([sums.documents for sums in window_sums])
    if config.packing == "concat":
        num_rows = tokens / config.max_length
    elif has_own_rows:
        num_rows, _ = total([sums.rows for sums in window_sums])
    else:
        num_rows = statistics.rows * (tokens / statistics.tokens)
    return Estimate(
        sample_bytes=sum(sums.bytes for sums in window_sums),
        windows=len(window_sums),
        documents=documents,
        document_error=document_error,
        tokens=tokens,
        token_error=token_error,
        rows=num_rows,
        record_bytes=encoded_bytes / encoded_rows,
        seconds=seconds + encoding / encoded_rows * num_rows,
        second_error=second_error,
        longest_bytes=max(sums.longest for sums in window_sums),
        has_beginnings=has_beginnings,
        has_one_place=not whole and len(window_sums) == 1,
    )


@dataclass
class _Sums:
    """Sums over the documents of a window, each multiplied by the share of it that is in the window."""

    window: SampleWindow
    seconds: float
    """The time of reading, tokenizing and packing, for the shares of the documents that are in the window."""
    bytes: int = 0
    longest: int = 0
    """Bytes of the longest document."""
    documents: float = 0
    tokens: float = 0
    rows: float = 0
    """Counted only if each row has a single document."""


_Piece = tuple[_Sums, DocumentBatch, float]


def _pieces(sample: Iterable[SampleWindow], window_sums: list[_Sums]) -> Iterator[_Piece]:
    """Yields the windows' documents, each with its window's sums and its share. Appends the sums to `window_sums`."""
    for window in sample:
        size = window.text_bytes
        bytes_in_window = sum(share * int(batch.bytes.sum()) for batch, share in window.pieces)
        sums = _Sums(window, window.seconds * (bytes_in_window / size if size else 1.0), size)
        window_sums.append(sums)
        for batch, share in window.pieces:
            sums.longest = max(sums.longest, int(batch.bytes.max(initial=0)))
            yield sums, batch, share
        window.pieces.clear()


def _counted(pieces: Iterable[_Piece], statistics: SplitStatistics) -> Iterator[DocumentBatch]:
    """Yields the documents, and adds the increments of `statistics` to their windows' sums."""
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


def likely_records(config: PrepareConfig, input_bytes: int) -> int:
    """Returns the approximate number of records in the largest shard; 0 for documents, which are not kept in memory.

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
