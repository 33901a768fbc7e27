"""`prepare --estimate`: the output, time, memory and cost of a run, estimated from a small sample of its input."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.tokenizer import LengthLimit, make_tokenizer
from beam_pipeline.curation.decisions import Decision
from beam_pipeline.curation.filters import make_filters
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.infilling import Infilling
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
from beam_pipeline.steps.curate import edit
from beam_pipeline.steps.keep import kept_shares
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.support import memory
from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.template import Template
from beam_pipeline.verbs.costs import CurationCost, OutputSize, dataflow_cost, needed_memory, passes
from beam_pipeline.verbs.results import Estimate, MachineCost

_SAMPLED_SHARE = 1 / 200
_MIN_SAMPLE_BYTES, _MAX_SAMPLE_BYTES = 8 << 20, 64 << 20  # bytes
_ENCODED_ROWS = 4096
_SECONDS_TO_START = 5  # imports, Beam's graph, and at the end the report


def estimate(
    config: PrepareConfig,
    input_plan: InputPlan,
    tokenizer: TokenizerDescription,
    *,
    template: Template,
    chat: ChatFormat | None,
    infilling: Infilling | None,
    pad_id: int,
    threads: int,
) -> Estimate:
    """Prepares and filters a sample of the input in memory. Does not compare documents.

    Args:
        config: The run's options.
        input_plan: The run's input.
        tokenizer: The run's tokenizer.
        template: The ids around each document.
        chat: How the tokenizer writes conversations; None if the documents are texts.
        infilling: Which texts are cut for infilling; None: none are.
        pad_id: The id that pads rows.
        threads: Number of threads of the tokenization engine.

    Raises:
        DataError: If the sample has no documents, or has a bad record that would end the run.
    """
    sample_bytes = min(max(int(input_plan.bytes * _SAMPLED_SHARE), _MIN_SAMPLE_BYTES), _MAX_SAMPLE_BYTES)
    sampled = windows(
        input_plan, config.input, sample_bytes=sample_bytes, seed=config.seed, columns=config.curation.columns
    )
    sample = _prepare(
        config,
        sampled,
        tokenizer,
        template=template,
        chat=chat,
        infilling=infilling,
        pad_id=pad_id,
        threads=threads,
    )
    encoded = _encode(config, format_for(config, tokenizer.vocab_size), sample.blocks)
    is_whole_input = sample_bytes >= input_plan.bytes
    window_sums = sample.window_sums

    def total(values: list[float]) -> tuple[float, float]:
        return (sum(values), 0.0) if is_whole_input else _extrapolated(values, window_sums, input_plan.bytes)

    seconds, second_error = total([sums.seconds for sums in window_sums])
    # Each pass over the input filters it.
    filter_seconds = total([sums.filter_seconds for sums in window_sums])[0] * passes(config)
    tokens, token_error = total([sums.tokens for sums in window_sums])
    documents, document_error = total([sums.documents for sums in window_sums])
    read_documents, _ = total([sums.read_documents for sums in window_sums])
    if config.packing == "concat":
        num_rows = tokens / config.max_length
    elif _has_own_rows(config):
        num_rows, _ = total([sums.rows for sums in window_sums])
    else:
        num_rows = sample.statistics.rows * (tokens / sample.statistics.tokens)
    if config.curation.keep is not None:
        kept = kept_shares(config.curation)
        documents, tokens = documents * kept.documents, tokens * kept.bytes
        num_rows *= kept.documents if _has_own_rows(config) else kept.bytes
    output = OutputSize(tokens=tokens, rows=num_rows, record_bytes=encoded.bytes / encoded.rows)
    longest_bytes = max(sums.longest_bytes for sums in window_sums)
    row_bytes = output.staged_bytes(config, tokenizer.vocab_size)
    curation = CurationCost.of(config, input_plan.bytes, read_documents, filter_seconds)
    encoding_seconds = encoded.seconds / encoded.rows * num_rows
    text_bytes = max(input_plan.bytes, int(tokens * memory.TEXT_BYTES_PER_TOKEN))
    return Estimate(
        input_bytes=input_plan.bytes,
        sample_bytes=sum(sums.bytes for sums in window_sums),
        places=len(window_sums),
        documents=round(documents),
        tokens=round(tokens),
        bytes=round(num_rows * output.record_bytes),
        document_error=document_error,
        token_error=token_error,
        second_error=second_error,
        longest_document_bytes=longest_bytes,
        removed_share=1 - documents / read_documents,
        filter_seconds=round(filter_seconds, 1),
        splits=output.splits(config),
        max_length=config.max_length,
        vocab_size=tokenizer.vocab_size,
        this_machine=MachineCost(
            seconds=round(seconds + encoding_seconds + curation.seconds + _SECONDS_TO_START, 1),
            memory_bytes=needed_memory(config, text_bytes, tokenizer.vocab_size, longest_bytes=longest_bytes),
            staged_bytes=row_bytes + curation.staged_bytes,
        ),
        dataflow=dataflow_cost(input_plan.bytes, row_bytes, curation, dict(config.prices)),
        has_beginnings=not is_whole_input and any(is_at_beginning(sums.window.unit) for sums in window_sums),
        has_one_place=not is_whole_input and len(window_sums) == 1,
    )


@dataclass
class _WindowSums:
    """Sums over the documents of a window, each multiplied by the share of it that is in the window."""

    window: SampleWindow
    seconds: float
    """The time of reading, tokenizing and packing, for the shares of the documents that are in the window."""
    bytes: int = 0
    longest_bytes: int = 0
    """Bytes of the longest document."""
    documents: float = 0
    tokens: float = 0
    filter_seconds: float = 0
    """CPU seconds of filtering them once."""
    read_documents: float = 0
    """The documents before filters."""
    rows: float = 0
    """Counted only if each row has a single document."""


class _PreparedSample(NamedTuple):
    """The rows of the sample."""

    window_sums: list[_WindowSums]
    blocks: list[RowBlock | DocumentBlock]
    """The first `_ENCODED_ROWS` rows."""
    statistics: SplitStatistics
    """Those of all rows if documents share rows."""


def _has_own_rows(config: PrepareConfig) -> bool:
    """Returns whether each row has a single document."""
    return config.packing in ("pad", "none")


def _prepare(
    config: PrepareConfig,
    sampled: Iterable[SampleWindow],
    tokenizer: TokenizerDescription,
    *,
    template: Template,
    chat: ChatFormat | None,
    infilling: Infilling | None,
    pad_id: int,
    threads: int,
) -> _PreparedSample:
    """Tokenizes and packs the windows. See `estimate` for the arguments and exceptions."""
    tokenizing = make_tokenizer(
        chat=chat,
        infilling=infilling,
        limit=None if chat is None else LengthLimit(config.max_length, config.overlong),
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        template=template,
        engine=config.engine,
        parse_special_tokens=config.parse_special_tokens,
        control_ids=tokenizer.control_ids,
        threads=threads,
    )
    window_sums: list[_WindowSums] = []
    blocks: list[RowBlock | DocumentBlock] = []
    num_missing = _ENCODED_ROWS
    pieces = _pieces(sampled, window_sums, make_filters(config.curation))

    def on_bad(record: BadRecord) -> None:
        if config.on_bad_record == "fail":
            raise DataError(describe(window_sums[-1].window.unit, record))

    packing = {"packing": config.packing, "max_length": config.max_length, "pad_id": pad_id}
    has_own_rows = _has_own_rows(config)
    # If each document has its own rows, each piece is packed separately. Otherwise, all pieces are packed together,
    # since few documents do not fill rows as well as many.
    for group in ([piece] for piece in pieces) if has_own_rows else [pieces]:
        rows = UnitRows(
            tokenizer=tokenizing,
            choose_split=SplitChooser((("all", 1.0),), config.seed, config.split_by),
            packers=[Packer(**packing, keep_starts=config.keep_starts)],
            vocab_size=tokenizer.vocab_size,
            on_bad=on_bad,
            record_columns=config.curation.record_columns,
        )
        [statistics] = rows.statistics
        for _, block in rows.blocks(_add_increments(group, statistics)):
            if num_missing:
                in_rows = isinstance(block, RowBlock)
                blocks.append(block.take(slice(num_missing)) if in_rows else block.cut(0, num_missing))
                num_missing -= len(blocks[-1])
        if has_own_rows:
            [(sums, _, share)] = group
            sums.rows += share * statistics.rows
    if not any(sums.tokens for sums in window_sums):
        removing = " or documents that filters remove" if config.curation.filter else ""
        raise DataError(f"the sample contains no documents, only blank records{removing}, or none at all")
    return _PreparedSample(window_sums, blocks, statistics)


def _extrapolated(
    values: list[float], window_sums: Sequence[_WindowSums], input_bytes: int
) -> tuple[float, float]:
    """Returns the sum of values of windows, extrapolated to the input, and its standard error as a share of it."""
    per_byte = np.array(values) / np.array([sums.window.planned_bytes for sums in window_sums])
    weights = np.array([sums.window.weight for sums in window_sums])
    mean = np.average(per_byte, weights=weights)
    count = len(window_sums)
    if count == 1 or not mean:
        return input_bytes * mean, 0.0
    deviation = np.sqrt((weights**2 * (per_byte - mean) ** 2).sum() * count / (count - 1))
    return input_bytes * mean, deviation / weights.sum() / mean


_Piece = tuple[_WindowSums, DocumentBatch, float]


def _pieces(
    sample: Iterable[SampleWindow], window_sums: list[_WindowSums], filters: list[Decision]
) -> Iterator[_Piece]:
    """Yields the windows' documents, each with its window's sums and its share. Appends the sums to `window_sums`.

    Documents that filters remove are left out, and the others have edited texts.
    """
    is_warm = False
    for window in sample:
        size = window.text_bytes
        bytes_in_window = sum(share * int(batch.texts.sizes.sum()) for batch, share in window.pieces)
        sums = _WindowSums(window, window.seconds * (bytes_in_window / size if size else 1.0), size)
        window_sums.append(sums)
        for batch, share in window.pieces:
            sums.longest_bytes = max(sums.longest_bytes, int(batch.texts.sizes.max(initial=0)))
            sums.read_documents += share * len(batch.texts)
            if not is_warm:  # models are loaded once, however long the run is
                edit(window.unit, batch, 0, filters)
                is_warm = True
            start_time = time.process_time()  # filters have one thread
            edited, removals = edit(window.unit, batch, 0, filters)
            kept = edited.without(removals.without_edits().documents)
            sums.filter_seconds += share * (time.process_time() - start_time) * bool(filters)
            if kept.texts:
                yield sums, kept, share
        window.pieces.clear()


def _add_increments(pieces: Iterable[_Piece], statistics: SplitStatistics) -> Iterator[DocumentBatch]:
    """Yields the documents, and adds the increments of `statistics` to their windows' sums."""
    for sums, batch, share in pieces:
        documents, tokens = statistics.documents, statistics.tokens
        start_time = time.perf_counter()
        yield batch
        sums.seconds += share * (time.perf_counter() - start_time)
        sums.documents += share * (statistics.documents - documents)
        sums.tokens += share * (statistics.tokens - tokens)


class _Encoded(NamedTuple):
    """The size of encoded rows, and the time that encoding them took."""

    rows: int
    bytes: int
    seconds: float


def _encode(
    config: PrepareConfig,
    shard_format: RowFormat | DocumentFormat,
    blocks: Sequence[RowBlock | DocumentBlock],
) -> _Encoded:
    """Encodes blocks as one shard."""
    if not blocks:  # less than a row
        return _Encoded(1, config.max_length * (2 + config.attention_mask), 0.0)
    start_time = time.perf_counter()
    if isinstance(shard_format, RowFormat):
        size = sum(map(len, shard_format.encode(RowBlock.concatenate(blocks))))
    else:
        file, index = io.BytesIO(), io.BytesIO()  # the index stays empty if the format has none
        shard_format.write(blocks, file, index)
        size = file.tell() + index.tell()
    return _Encoded(sum(map(len, blocks)), size, time.perf_counter() - start_time)
