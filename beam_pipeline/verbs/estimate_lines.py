"""The results of `prepare --estimate`, in lines and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.options.option_values import PRICES
from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.rows.routing import ShardLayout
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.support import memory
from beam_pipeline.support.amounts import counted, human_bytes, megabytes
from beam_pipeline.verbs.estimate import Estimate, needed_memory

_SECONDS_TO_START = 5  # imports, Beam's graph, and at the end the report

# Dataflow. docs/dataflow.md explains these figures.
_BYTES_PER_VCPU_SECOND = 10e6
_GIGABYTES_PER_VCPU = 4


def describe_estimate(
    estimated: Estimate, config: PrepareConfig, input_plan: InputPlan, vocab_size: int
) -> Iterator[str]:
    """Yields the lines of the estimate for the user.

    Args:
        estimated: The estimate.
        config: The run's options.
        input_plan: The run's input.
        vocab_size: The number of the tokenizer's ids.
    """
    tokens, size = _margin(estimated.token_error), human_bytes(estimated.rows * estimated.record_bytes)
    yield (
        f"sample: {megabytes(estimated.sample_bytes)} of text from {counted(estimated.windows, 'place')} of the input's"
        f" {megabytes(input_plan.bytes)}"
    )
    yield (
        f"all splits: about {counted(round(estimated.documents), 'document')}{_margin(estimated.document_error)}, "
        f"{estimated.tokens:,.0f} tokens{tokens}, {size}{tokens}"
    )
    if estimated.has_beginnings:
        yield (
            "compressed files and row groups are sampled from their beginning only: if the rest of them differs, so do "
            "all figures, by more than the margins given here"
        )
    elif estimated.has_one_place:
        yield "the sample is from one place only, so the margins are unknown"
    yield from _split_lines(estimated, config)
    if config.dedup == "exact":
        yield "duplicates, which --dedup exact leaves out, are counted here: a sample does not show them"
    costs = _costs(estimated, config, input_plan, vocab_size)
    seconds = f"{_duration(estimated.seconds + _SECONDS_TO_START)}{_margin(estimated.second_error)}"
    yield (
        f"on this machine: about {seconds}, {human_bytes(costs.memory_bytes)} of memory (the longest document of the "
        f"sample has {human_bytes(estimated.longest_bytes)}; a longer one needs more), and while it runs "
        f"{human_bytes(costs.staged_bytes)}{tokens} more in the output folder"
    )
    yield (
        f"on Dataflow: about {costs.vcpu_hours:,.2g} vCPU-hours and {human_bytes(costs.shuffled_bytes)} through the "
        f"shuffle: ${costs.dollars:,.2f} (--prices)"
    )


def estimate_document(
    estimated: Estimate, config: PrepareConfig, input_plan: InputPlan, vocab_size: int
) -> dict[str, Any]:
    """Returns the estimate as JSON values. The arguments are those of `describe_estimate`.

    An `…_error` is the standard error as a share of the value, or null if it is unknown.
    """
    known = not (estimated.has_beginnings or estimated.has_one_place)
    errors = {
        name: getattr(estimated, name) if known else None
        for name in ("document_error", "token_error", "second_error")
    }
    costs = _costs(estimated, config, input_plan, vocab_size)
    return {
        "input_bytes": input_plan.bytes,
        "sample_bytes": estimated.sample_bytes,
        "places": estimated.windows,
        "documents": round(estimated.documents),
        "tokens": round(estimated.tokens),
        "bytes": round(estimated.rows * estimated.record_bytes),
        **errors,
        "longest_document_bytes": estimated.longest_bytes,
        "splits": {
            name: {
                "tokens": round(estimated.tokens * share),
                "rows": layout.num_rows,
                "shards": layout.num_shards,
                "bytes": round(layout.num_rows * estimated.record_bytes),
            }
            for (name, share), layout in zip(config.splits, _layouts(estimated, config), strict=True)
        },
        "this_machine": {
            "seconds": round(estimated.seconds + _SECONDS_TO_START, 1),
            "memory_bytes": round(costs.memory_bytes),
            "staged_bytes": round(costs.staged_bytes),
        },
        "dataflow": {
            "vcpu_hours": costs.vcpu_hours,
            "shuffled_bytes": round(costs.shuffled_bytes),
            "dollars": round(costs.dollars, 2),
        },
    }


def _layouts(estimated: Estimate, config: PrepareConfig) -> Iterator[ShardLayout]:
    """Yields the layout of each split."""
    for name, share in config.splits:
        yield ShardLayout(
            split=name,
            num_rows=math.ceil(estimated.rows * share),
            shard_size=config.shard_size,
            requested_shards=config.num_shards,
            shuffle=config.shuffle,
            seed=config.seed,
        )


def _split_lines(estimated: Estimate, config: PrepareConfig) -> Iterator[str]:
    for (name, share), layout in zip(config.splits, _layouts(estimated, config), strict=True):
        rows = layout.num_rows
        records = counted(rows, "document")
        if config.max_length:
            records = f"{counted(rows, 'row')} of {config.max_length}"
        yield (
            f"{name}: about {estimated.tokens * share:,.0f} tokens, {records}, "
            f"{counted(layout.num_shards, 'shard')}, {human_bytes(rows * estimated.record_bytes)}"
        )


class _Costs(NamedTuple):
    """What a run takes, here and on Dataflow."""

    memory_bytes: float
    staged_bytes: float
    """Bytes in the output folder while the run lasts, besides the shards."""
    vcpu_hours: float
    shuffled_bytes: float
    dollars: float


def _costs(estimated: Estimate, config: PrepareConfig, input_plan: InputPlan, vocab_size: int) -> _Costs:
    id_bytes = id_dtype(vocab_size).itemsize
    staged_bytes = (estimated.rows * config.max_length if config.max_length else estimated.tokens) * id_bytes
    text_bytes = max(input_plan.bytes, estimated.tokens * memory.TEXT_BYTES_PER_TOKEN)
    prices = PRICES | dict(config.prices)
    hours = input_plan.bytes / _BYTES_PER_VCPU_SECOND / 3600
    shuffled_bytes = 2 * staged_bytes  # each byte is written and read
    dollars = hours * (prices["vcpu_hour"] + _GIGABYTES_PER_VCPU * prices["gb_hour"])
    dollars += shuffled_bytes / 1e9 * prices["shuffle_gb"]
    return _Costs(
        memory_bytes=needed_memory(
            config, int(text_bytes), vocab_size, longest_bytes=estimated.longest_bytes
        ),
        staged_bytes=staged_bytes,
        vcpu_hours=hours,
        shuffled_bytes=shuffled_bytes,
        dollars=dollars,
    )


def _margin(error: float) -> str:
    """Returns the range that contains the true value in 19 of 20 cases, if a sum has such a standard error."""
    return f" ± {2 * error:.1%}" if error > 0.00025 else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
