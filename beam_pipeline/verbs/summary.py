"""The lines that `prepare` prints about the dataset at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset import manifest
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted, megabytes

# Hugging Face's tokenizers needs about ten times as long as an engine, so with more of the text it binds.
_MANY_DOCUMENTS, _MUCH_TEXT = 0.1, 0.01


def print_summary(config: PrepareConfig, output: str, seconds: float | None) -> None:
    """Prints a summary of a finished dataset.

    Args:
        config: The run's options.
        output: The dataset's folder, absolute.
        seconds: How long the run took. None if the dataset was already finished.
    """
    total_bytes = 0
    for name in config.split_names:
        found = manifest.read_manifest(filesystem.join(output, name))
        totals = found["totals"]
        total_bytes += totals["bytes"]
        fill = totals["tokens"] / max(1, totals["tokens"] + totals["padding"])
        rows = f"{counted(totals['rows'], 'row')} of {found['max_length']} ({fill:.2%} full), "
        if found["max_length"] is None:
            rows = ""
        print(
            f"{name}: {counted(totals['documents'], 'document')}, {counted(totals['tokens'], 'token')}, "
            f"{rows}{counted(len(found['shards']), 'shard')}"
        )
        if not totals["rows"]:
            print(f"{name}: WARNING: this split is empty: it received no document")
        elif totals["rows"] < (config.num_shards or 0):
            print(
                f"{name}: WARNING: --num_shards {config.num_shards}: this split has only {totals['rows']} rows, "
                "with one shard for each"
            )
    left_out = {name: count for name, count in found["excluded"].items() if count and name != "records"}
    if left_out:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in left_out.items())
        print(f"left out of {found['excluded']['records']:,} records: {counts}")
    for engine in found["engines"]:
        for line in _describe_engine(engine, total_bytes):
            print(line)
    if seconds is not None:
        print(
            f"{megabytes(total_bytes)} of text in {seconds:.1f} s ({total_bytes / 1e6 / seconds:.1f} MB/s): {output}"
        )


def _describe_engine(engine: Mapping[str, Any], total_bytes: int) -> Iterator[str]:
    """Yields lines about an engine of the manifest: what it has encoded, and what of it HF."""
    documents, left = engine["documents"], engine["left_to_hf"]
    if dropped := engine.get("dropped"):
        yield (
            f"WARNING: the tokenizer has no token for {counted(dropped['characters'], 'character')} of "
            f"{counted(dropped['documents'], 'document')}, and drops them"
        )
    encoded = f"{counted(documents, 'document')} encoded by"
    if engine["name"] == "hf":
        why = f", since no faster engine gives the ids exactly: {next(iter(left['reasons']), '')}"
        yield f"{encoded} Hugging Face's tokenizers {engine['version']}{why if left['documents'] else ''}"
        return
    line = f"{encoded} {engine['name']} {engine['version']}"
    if not left["documents"]:
        yield line
        return
    shares = left["documents"] / documents, left["bytes"] / max(1, total_bytes)
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in left["reasons"].items())
    yield (
        f"{line}; parts of {left['documents']:,} ({shares[0]:.2%}) by Hugging Face's tokenizers, {shares[1]:.2%} of "
        f"the text: {reasons}"
    )
    if shares[0] > _MANY_DOCUMENTS and shares[1] > _MUCH_TEXT:
        yield f"WARNING: this run was slow, since Hugging Face's tokenizers encoded {shares[1]:.0%} of the text"
