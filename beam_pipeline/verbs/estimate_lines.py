"""The lines that `prepare --estimate` prints."""

from __future__ import annotations

from collections.abc import Iterator

from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.support.amounts import counted, human_bytes, megabytes
from beam_pipeline.verbs.costs import passes
from beam_pipeline.verbs.results import Estimate


def describe_estimate(estimated: Estimate, config: PrepareConfig) -> Iterator[str]:
    """Yields the lines of the estimate for the user. `config` has the run's options."""
    tokens = _margin(estimated.token_error)
    yield (
        f"sample: {megabytes(estimated.sample_bytes)} of text from {counted(estimated.places, 'place')} of the input's"
        f" {megabytes(estimated.input_bytes)}"
    )
    yield (
        f"all splits: about {counted(estimated.documents, 'document')}{_margin(estimated.document_error)}, "
        f"{estimated.tokens:,} tokens{tokens}, {human_bytes(estimated.bytes)}{tokens}"
    )
    if estimated.has_beginnings:
        yield (
            "compressed files and row groups are sampled from their beginning only: if the rest of them differs, so do "
            "all figures, by more than the margins given here"
        )
    elif estimated.has_one_place:
        yield "the sample is from one place only, so the margins are unknown"
    for name, split in estimated.splits.items():
        records = counted(split.rows, "document")
        if config.max_length:
            records = f"{counted(split.rows, 'row')} of {config.max_length}"
        yield (
            f"{name}: about {split.tokens:,} tokens, {records}, {counted(split.shards, 'shard')}, "
            f"{human_bytes(split.bytes)}"
        )
    if config.dedup != "none" or config.contamination.decontaminate:
        yield "documents that --dedup and --decontaminate leave out are counted here: a sample does not show them"
    if config.curation.filter or config.curation.keep:
        number = passes(config)
        times = "once" if number == 1 else f"in {number} passes over the input"
        yield (
            f"filters: leave out {estimated.removed_share:.1%} of the documents, which are not counted here, and take "
            f"about {_duration(estimated.filter_seconds)} of the time, {times}"
        )
    machine, dataflow = estimated.this_machine, estimated.dataflow
    yield (
        f"on this machine: about {_duration(machine.seconds)}{_margin(estimated.second_error)}, "
        f"{human_bytes(machine.memory_bytes)} of memory (the longest document of the sample has "
        f"{human_bytes(estimated.longest_document_bytes)}; a longer one needs more), and while it runs "
        f"{human_bytes(machine.staged_bytes)}{tokens} more in the output folder"
    )
    yield (
        f"on Dataflow: about {dataflow.vcpu_hours:,.2g} vCPU-hours and {human_bytes(dataflow.shuffled_bytes)} through "
        f"the shuffle: ${dataflow.dollars:,.2f} (--prices)"
    )


def _margin(error: float) -> str:
    """Returns the range that contains the true value in 19 of 20 cases, if a sum has such a standard error."""
    return f" ± {2 * error:.1%}" if error > 0.00025 else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
