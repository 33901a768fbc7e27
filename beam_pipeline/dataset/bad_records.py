"""Excluded records: their counts, and a folder beside the splits with the bad ones and the reason for each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from beam_pipeline.curation.removals import EXACT, Removals
from beam_pipeline.sources.units import BadRecord, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError

FOLDER = "bad_records"
FILE_NAME = re.compile(r"unit-\d{6,}\.jsonl(\.tmp)?")


@dataclass
class Excluded:
    """Counts over work units: all records, and those that are excluded from the dataset, by reason."""

    NAMES: ClassVar[tuple[str, ...]] = (
        *("records", "blank_documents", "bad_records", "duplicate_documents", "overlong_documents"),
        "removed_documents",
    )

    records: int = 0
    blank_documents: int = 0
    bad_records: int = 0
    duplicate_documents: int = 0
    overlong_documents: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    """The documents that rules remove, by the combination of rules, except for those that `exact` alone removes, which
    are `duplicate_documents`."""
    edited: dict[str, int] = field(default_factory=dict)
    """The documents that stay without the passages that rules remove or mask, by the combination of rules."""

    @property
    def removed_documents(self) -> int:
        return sum(self.removed.values())

    def add_removals(self, removals: Removals) -> None:
        """Adds the documents of a unit that were removed or edited."""
        whole = removals.without_edits()
        for rules, count in (
            removals.edits().without(whole.documents, masked=whole.documents).counts().items()
        ):
            self.edited[rules] = self.edited.get(rules, 0) + count
        for rules, count in whole.counts().items():
            if rules == EXACT:
                self.duplicate_documents += count
            else:
                self.removed[rules] = self.removed.get(rules, 0) + count

    def __add__(self, other: Excluded) -> Excluded:
        names = [name for name in self.NAMES if name != "removed_documents"]
        removed = Counter(self.removed) + Counter(other.removed)
        edited = Counter(self.edited) + Counter(other.edited)
        return Excluded(
            **{name: getattr(self, name) + getattr(other, name) for name in names},
            removed=dict(sorted(removed.items())),
            edited=dict(sorted(edited.items())),
        )

    def to_json(self) -> dict[str, int]:
        """Returns the entry in the manifest. Only conversations are ever too long, and only rules remove documents."""
        counts = {name: getattr(self, name) for name in self.NAMES}
        for name in ("overlong_documents", "removed_documents"):
            if not counts[name]:
                del counts[name]
        return counts

    def check(self, max_bad_ratio: float) -> None:
        """Checks that the share of bad records is at most `max_bad_ratio`.

        Raises:
            DataError: If it is larger.
        """
        if self.bad_records > max_bad_ratio * self.records:
            raise DataError(
                f"{self.bad_records} of {self.records} records are bad, a share of "
                f"{self.bad_records / self.records:.3g}, above --max_bad_ratio {max_bad_ratio:g}; "
                f"{FOLDER}/ in the output folder contains each of them with its reason"
            )


def write_bad_records(output: str, unit: WorkUnit, records: Sequence[BadRecord]) -> str:
    """Writes a unit's bad records as JSON lines, each with path, place, reason and the whole content.

    Returns:
        The path of the file.
    """
    lines = []
    for record in records:
        content = record.content.decode(errors="backslashreplace")
        entry = {"path": unit.root + record.name, "place": record.place, "reason": record.reason}
        lines.append(json.dumps({**entry, "content": content}) + "\n")
    path = filesystem.join(output, FOLDER, f"unit-{unit.index:06d}.jsonl")
    filesystem.write_bytes(path, "".join(lines).encode())
    return path
