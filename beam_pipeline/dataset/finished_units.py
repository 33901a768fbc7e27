"""What a run keeps of each finished work unit, in a file of its own below the staging folder.

The later steps read the rows from there, so rows do not pass through the runner before they are routed; and a unit
whose file is intact is not tokenized again, neither when a runner retries it nor with `--resume`. The content is a
function of the run's fingerprint and the unit: attempts that overlap publish equal files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from beam_pipeline import filesystem
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.sections import (
    Section,
    SectionWriter,
    create_sections,
    read_kept,
    read_section,
)
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Tail
from beam_pipeline.sources.units import WorkUnit

_FOLDER = "units"
_SUFFIX = ".rows"


@dataclass(frozen=True)
class BlockPlace:
    """Where a block of rows is kept.

    Attributes:
      split: the index of its split.
      unit: the number of the unit that gave the rows; rows packed from tails are of the number after the last.
      first: the number of its first row among those that the unit gave to the split.
      rows: how many rows it holds.
      section: the block's bytes in the unit's file.
    """

    split: int
    unit: int
    first: int
    rows: int
    section: Section


@dataclass(frozen=True)
class FinishedUnit:
    """All that a work unit gave.

    Attributes:
      blocks: where its rows are.
      tails: of each split; None if nothing is left.
      statistics: of each split.
      excluded: counts of the records that became no documents.
      bad_records: the path of the file with its bad records; None if there are none.
    """

    blocks: tuple[BlockPlace, ...]
    tails: tuple[Tail | None, ...]
    statistics: tuple[SplitStatistics, ...]
    excluded: Excluded
    bad_records: str | None

    def rows(self, split: int) -> int:
        """How many rows the unit gave to the split."""
        return sum(block.rows for block in self.blocks if block.split == split)


def identity_of(fingerprint: str, unit: WorkUnit) -> dict[str, Any]:
    """What must be the same for a unit's file to be of use: the run, the unit, and the versions of the files it reads.

    Raises:
      OSError: if one of the files cannot be read.
    """
    paths = list(dict.fromkeys(unit.root + part.name for part in unit.parts))
    return {"fingerprint": fingerprint, "unit": unit.index, "versions": filesystem.versions(paths)}


def unit_path(staging: str, unit: int) -> str:
    """The file of a work unit's rows."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}{_SUFFIX}")


def tails_path(staging: str, split: int, block: int) -> str:
    """The file of a block of rows that were packed from tails."""
    return filesystem.join(staging, _FOLDER, f"tails-{split}-{block:05d}{_SUFFIX}")


def hashes_path(staging: str, unit: int) -> str:
    """The file of the hashes of a work unit's documents."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}.hashes")


def count_finished(files: Sequence[str]) -> int:
    """How many of these files are finished units' rows."""
    names = (path.rpartition("/")[2] for path in files)
    return sum(name.startswith("unit-") and name.endswith(_SUFFIX) for name in names)


class UnitWriter:
    """Takes a unit's blocks as they come, and what else it gave at the end."""

    def __init__(self, sections: SectionWriter, *, identity: Mapping[str, Any], splits: int):
        self._sections = sections
        self._identity = identity
        self._counts = [0] * splits
        self._blocks: list[BlockPlace] = []

    def add(self, split: int, block: RowBlock) -> None:
        """Adds the split's next rows."""
        section = self._sections.add(block.to_bytes())
        place = BlockPlace(split, self._identity["unit"], self._counts[split], len(block), section)
        self._blocks.append(place)
        self._counts[split] += len(block)

    def end(
        self,
        *,
        tails: Sequence[Tail | None],
        statistics: Sequence[SplitStatistics],
        excluded: Excluded,
        bad_records: str | None,
    ) -> FinishedUnit:
        """Writes what is not rows, which ends the file."""
        add = self._sections.add
        index = {
            **self._identity,
            "blocks": [(place.split, place.first, place.rows, *place.section) for place in self._blocks],
            "tails": [
                tail and (tail.ids.itemsize, add(tail.ids.tobytes()), add(tail.starts.tobytes()))
                for tail in tails
            ],
            "statistics": [add(one.to_bytes()) for one in statistics],
            "excluded": asdict(excluded),
            "bad_records": bad_records,
        }
        self._sections.end(index)
        return FinishedUnit(tuple(self._blocks), tuple(tails), tuple(statistics), excluded, bad_records)


@contextlib.contextmanager
def create_unit(path: str, *, identity: Mapping[str, Any], splits: int) -> Iterator[UnitWriter]:
    """The file of the unit with this `identity_of`, ended with `UnitWriter.end`; if the block fails there is none."""
    with create_sections(path) as sections:
        yield UnitWriter(sections, identity=identity, splits=splits)


def find_unit(path: str, *, identity: Mapping[str, Any]) -> FinishedUnit | None:
    """The unit with this `identity_of`, if an earlier attempt finished it and every byte of its file is as it was
    written; else None."""
    found = read_kept(path, identity, lambda file, index: _read_unit(file, index, path))
    if found is not None and found.bad_records is not None and not filesystem.exists(found.bad_records):
        return None
    return found


def _read_unit(file: BinaryIO, index: Mapping[str, Any], path: str) -> FinishedUnit:
    blocks = tuple(
        BlockPlace(split, index["unit"], first, rows, Section(*section))
        for split, first, rows, *section in index["blocks"]
    )
    for block in blocks:
        read_section(file, block.section, path)
    return FinishedUnit(
        blocks,
        tuple(tail and _read_tail(file, tail, path) for tail in index["tails"]),
        tuple(
            SplitStatistics.from_bytes(read_section(file, Section(*section), path))
            for section in index["statistics"]
        ),
        Excluded(**index["excluded"]),
        index["bad_records"],
    )


def _read_tail(file: Any, tail: list, path: str) -> Tail:
    itemsize, *sections = tail
    ids, starts = (read_section(file, Section(*section), path) for section in sections)
    return Tail.from_bytes(ids, starts, itemsize)
