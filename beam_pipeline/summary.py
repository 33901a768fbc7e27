"""The lines that `prepare` prints about the dataset at the end of a run."""

from __future__ import annotations

from beam_pipeline import filesystem
from beam_pipeline.amounts import counted, megabytes
from beam_pipeline.dataset import manifest
from beam_pipeline.options import PrepareConfig


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
        print(
            f"{name}: {counted(totals['documents'], 'document')}, {counted(totals['tokens'], 'token')}, "
            f"{counted(totals['rows'], 'row')} of {found['max_length']} ({fill:.2%} full), "
            f"{counted(len(found['shards']), 'shard')}"
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
    if seconds is not None:
        print(
            f"{megabytes(total_bytes)} of text in {seconds:.1f} s ({total_bytes / 1e6 / seconds:.1f} MB/s): {output}"
        )
