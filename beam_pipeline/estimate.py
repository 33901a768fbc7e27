"""`prepare --estimate`: what a run would make, need and cost, from a small sample of its input."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from beam_pipeline import filesystem, memory
from beam_pipeline.amounts import counted, human_bytes, megabytes
from beam_pipeline.dataset.records import feature_names
from beam_pipeline.errors import DataError
from beam_pipeline.formats import format_class
from beam_pipeline.formats.base import RowForm
from beam_pipeline.option_values import PRICES
from beam_pipeline.options import PrepareConfig
from beam_pipeline.rows.packing import Packer
from beam_pipeline.rows.routing import Layout
from beam_pipeline.rows.split_chooser import SplitChooser
from beam_pipeline.sources import describe
from beam_pipeline.sources.plan import Plan
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.sources.windows import windows
from beam_pipeline.steps.unit_rows import UnitRows
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.tokenization.documents import DocumentTokenizer, Template
from beam_pipeline.tokenization.token_arrays import id_dtype

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
    error: float
    """Standard error of `tokens`, as a share of them. 0 if the sample is the whole input."""
    rows: float
    record_bytes: float
    """Average size of a row's record in its file."""
    seconds: float
    """How long reading, tokenizing, packing and encoding would take in this process."""


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
    starts = config.segment_ids or config.position_ids
    packing = {"packing": config.packing, "max_length": config.max_length, "pad_id": pad_id}
    rows = UnitRows(
        tokenizer=DocumentTokenizer(
            tokenizer_json=tokenizer.json,
            vocab_size=tokenizer.vocab_size,
            template=template,
            engine=config.engine,
            parse_special_tokens=config.parse_special_tokens,
            control_ids=tokenizer.control_ids,
            threads=threads,
        ),
        choose=SplitChooser((("all", 1.0),), config.seed, config.split_by),
        packers=[Packer(**packing, keep_starts=starts)],
        vocab_size=tokenizer.vocab_size,
    )
    [statistics] = rows.statistics
    form = RowForm(
        max_length=config.max_length,
        vocab_size=tokenizer.vocab_size,
        features=feature_names(
            attention_mask=config.attention_mask,
            segment_ids=config.segment_ids,
            position_ids=config.position_ids,
        ),
    )
    shard_format = format_class(config.output_format)(form)
    wanted = min(max(int(planned.bytes * _SAMPLED_SHARE), _LEAST), _MOST)
    found: list[tuple[float, int, float]] = []  # of each window: planned bytes, tokens, seconds

    def read() -> Iterator[DocumentBatch]:
        for window in windows(planned, config.input, sample_bytes=wanted, seed=config.seed):
            tokens, began = statistics.tokens, time.perf_counter()
            for batch in window.batches:
                if batch.bad and config.on_bad_record == "fail":
                    raise DataError(describe(window.unit, batch.bad[0]))
                yield batch
            found.append(
                (window.planned, statistics.tokens - tokens, time.perf_counter() - began + window.seconds)
            )

    encoded_rows = encoded_bytes = 0
    encoding = 0.0
    for _, block in rows.blocks(read()):
        began = time.perf_counter()
        some = block.take(slice(0, _ENCODED_ROWS - encoded_rows))
        if len(some):
            encoded_bytes += sum(map(len, shard_format.encode(some)))
            encoded_rows += len(some)
        encoding += time.perf_counter() - began
    if not statistics.tokens:
        raise DataError("the sample contains no documents, only blank records or none at all")
    sampled, tokens, seconds = np.array(found).T
    scale = 1.0 if wanted >= planned.bytes else planned.bytes / sampled.sum()
    made = (
        statistics.tokens * scale / config.max_length
        if config.packing == "concat"
        else statistics.rows * scale
    )
    if not encoded_rows:  # less than a row
        encoded_rows, encoded_bytes = 1, config.max_length * (2 + config.attention_mask)
    return Estimate(
        sample_bytes=statistics.bytes,
        windows=len(found),
        documents=statistics.documents * scale,
        tokens=statistics.tokens * scale,
        error=0.0 if scale == 1 else _error(sampled, tokens),
        rows=made,
        record_bytes=encoded_bytes / encoded_rows,
        seconds=float(np.median(seconds / sampled)) * planned.bytes + encoding / encoded_rows * made,
    )


def _error(sampled: np.ndarray, tokens: np.ndarray) -> float:
    """Returns the standard error of the ratio of sums Σ tokens / Σ sampled (Cochran, 1977), as a share of the ratio."""
    residuals = tokens - tokens.sum() / sampled.sum() * sampled
    return float(np.sqrt(len(tokens) / max(1, len(tokens) - 1) * (residuals**2).sum()) / tokens.sum())


def describe_estimate(made: Estimate, config: PrepareConfig, planned: Plan, vocab_size: int) -> Iterator[str]:
    """Yields the lines of the estimate for the user.

    Args:
        made: The estimate.
        config: The run's options.
        planned: Its input.
        vocab_size: The number of the tokenizer's ids.
    """
    margin = f" ± {2 * made.error:.1%}" if made.error else ""
    yield (
        f"sample: {megabytes(made.sample_bytes)} of text from {made.windows:,} places of the input's "
        f"{megabytes(planned.bytes)}"
    )
    yield (
        f"all splits: about {made.documents:,.0f} documents, {made.tokens:,.0f} tokens{margin}, "
        f"{human_bytes(made.rows * made.record_bytes)}"
    )
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
        yield (
            f"{name}: about {made.tokens * share:,.0f} tokens, {rows:,} rows of {config.max_length}, "
            f"{counted(layout.num_shards, 'shard')}, {human_bytes(rows * made.record_bytes)}"
        )
    if config.dedup == "exact":
        yield "duplicates, which --dedup exact leaves out, are counted here: a sample does not show them"
    id_bytes = id_dtype(vocab_size).itemsize
    staged = made.rows * config.max_length * id_bytes
    seconds = made.seconds + _SECONDS_TO_START
    needs = needed_memory(config, planned.bytes, vocab_size)
    yield (
        f"on this machine: about {_duration(seconds)}, {human_bytes(needs)} of memory, and while it runs "
        f"{human_bytes(staged)} more in the output folder"
    )
    prices = PRICES | dict(config.prices)
    hours = planned.bytes / _BYTES_PER_VCPU_SECOND / 3600
    shuffle = 2 * staged  # each byte is written and read
    workers = hours * (prices["vcpu_hour"] + _GIGABYTES_PER_VCPU * prices["gb_hour"])
    yield (
        f"on Dataflow: about {hours:,.2g} vCPU-hours and {human_bytes(shuffle)} through the shuffle: "
        f"${workers + shuffle / 1e9 * prices['shuffle_gb']:,.2f} (--prices)"
    )


def needed_memory(config: PrepareConfig, input_bytes: int, vocab_size: int) -> int:
    """Returns the estimated peak memory of a run in this process, in bytes.

    Args:
        config: The run's options.
        input_bytes: Bytes of text.
        vocab_size: The number of the tokenizer's ids.
    """
    return memory.needed(
        input_bytes=input_bytes,
        id_bytes=id_dtype(vocab_size).itemsize,
        groups_rows=not filesystem.is_local(config.output),
        groups_hashes=config.dedup == "exact",
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
