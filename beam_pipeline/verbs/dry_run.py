"""The results of `--dry_run` and of decontamination: what `prepare` removes, or would remove."""

from __future__ import annotations

import json

from beam_pipeline.curation.contamination_report import describe
from beam_pipeline.dataset.removed_documents import DRY_RUN_PATH, FOLDER, REPORT_PATH
from beam_pipeline.support import filesystem
from beam_pipeline.verbs.results import PreparedDataset
from beam_pipeline.verbs.summary import describe_edits


def read_dry_run(output: str) -> PreparedDataset:
    """Returns the counts of a dry run, without splits."""
    counts = json.loads(filesystem.read_bytes(filesystem.join(output, DRY_RUN_PATH)))
    return PreparedDataset(
        output=output, finished=True, excluded=counts["excluded"] | counts["removed"], edited=counts["edited"]
    )


def print_dry_run(prepared: PreparedDataset) -> None:
    """Prints the counts of a dry run, and the report of decontamination."""
    print_contamination(prepared.output)
    counts = dict(prepared.excluded)
    total = counts.pop("records")
    removed = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    print(f"of {total:,} records would be left out: {removed or 'none'}")
    if prepared.edited:
        print(describe_edits(prepared.edited))
    print(f"{filesystem.join(prepared.output, FOLDER)} lists each of them")


def print_contamination(output: str) -> None:
    """Prints a line for each benchmark, if there is a report of decontamination."""
    path = filesystem.join(output, REPORT_PATH)
    if filesystem.exists(path):
        for line in describe(json.loads(filesystem.read_bytes(path))):
            print(line)
