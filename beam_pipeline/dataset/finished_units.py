"""The result of each finished work unit, in one file per unit below the staging folder.

The later steps read the rows from these files, so rows do not pass through the runner before they are routed. A unit
whose file is intact is not tokenized again, neither if a runner retries it nor with `--resume`. The content is a
function of the run's fingerprint and the unit, so concurrent attempts publish equal files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import google_crc32c

from beam_pipeline.dataset import text_checksums
from beam_pipeline.dataset.bad_records import Excluded
from beam_pipeline.dataset.sections import (
    Section,
    SectionWriter,
    create_sections,
    read_if_intact,
    read_section,
)
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.fallbacks import EngineUse
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.packing import Tail
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.support import filesystem

_FOLDER = "units"
_SUFFIX = ".rows"


@dataclass(frozen=True)
class BlockPlace:
    """The location of a block of rows."""

    split: int
    """The index of the rows' split."""
    unit: int
    """The index of the rows' work unit. For rows packed from tails, the number of work units."""
    first_row: int
    """The index of the first row among all rows of this unit and split."""
    rows: int
    """The number of rows."""
    section: Section
    """The block's bytes in the unit's file."""


@dataclass(frozen=True)
class FinishedUnit:
    """The result of a work unit."""

    blocks: tuple[BlockPlace, ...]
    """The locations of its rows."""
    tails: tuple[Tail | None, ...]
    """The tail of each split, None if no tokens are left over."""
    statistics: tuple[SplitStatistics, ...]
    """The statistics of each split."""
    excluded: Excluded
    """The number of its records, and of those that are excluded."""
    use: EngineUse
    """The engine that encoded it, and the documents that HF encoded instead."""
    bad_records: str | None
    """The path of the file with its bad records. None if there are none."""
    removed: str | None = None
    """The path of the file that lists its removed documents. None if there are none."""

    def rows(self, split: int) -> int:
        """Returns the unit's number of rows in a split."""
        return sum(block.rows for block in self.blocks if block.split == split)


def identity_of(fingerprint: str, unit: WorkUnit, removals: bytes = b"") -> dict[str, Any]:
    """Returns the entries that identify a unit's result: the run, the unit, and its other inputs.

    The other inputs are the versions of the unit's files, and the removals (`Removals.to_bytes`) that depend on other
    units, whose files may have been edited.

    Raises:
        OSError: If one of the files cannot be read.
    """
    paths = list(dict.fromkeys(unit.root + part.name for part in unit.parts))
    return {
        "fingerprint": fingerprint,
        "unit": unit.index,
        "versions": filesystem.versions(paths),
        "duplicates": google_crc32c.value(removals),
    }


def unit_path(staging: str, unit: int) -> str:
    """Returns the path of a work unit's rows."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}{_SUFFIX}")


def tails_path(staging: str, split: int, block: int) -> str:
    """Returns the path of a block of rows that were packed from tails."""
    return filesystem.join(staging, _FOLDER, f"tails-{split}-{block:05d}{_SUFFIX}")


def hashes_path(staging: str, unit: int) -> str:
    """Returns the path of the hashes of a work unit's documents."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}.hashes")


def matches_path(staging: str, unit: int) -> str:
    """Returns the path of the n-grams of benchmarks in a work unit's documents."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}.matches")


def paragraphs_path(staging: str, unit: int) -> str:
    """Returns the path of the paragraphs of a unit's documents."""
    return filesystem.join(staging, _FOLDER, f"unit-{unit:07d}.paragraphs")


def count_finished(files: Sequence[str]) -> int:
    """Returns how many of these files are the rows of a finished unit."""
    names = (path.rpartition("/")[2] for path in files)
    return sum(name.startswith("unit-") and name.endswith(_SUFFIX) for name in names)


class UnitWriter:
    """Writes a unit's blocks one by one, then the rest of its result."""

    def __init__(self, sections: SectionWriter, *, identity: Mapping[str, Any], splits: int):
        self._sections = sections
        self._identity = identity
        self._counts = [0] * splits
        self._blocks: list[BlockPlace] = []

    def add(self, split: int, block: RowBlock | DocumentBlock) -> None:
        """Writes the split's next rows."""
        section = self._sections.add(*block.parts())
        place = BlockPlace(split, self._identity["unit"], self._counts[split], len(block), section)
        self._blocks.append(place)
        self._counts[split] += len(block)

    def end(
        self,
        *,
        tails: Sequence[Tail | None],
        statistics: Sequence[SplitStatistics],
        excluded: Excluded,
        use: EngineUse,
        bad_records: str | None,
        removed: str | None,
        run: str,
        texts: Mapping[str, int],
    ) -> FinishedUnit:
        """Writes the rest of the result, which ends the file.

        `run` is the id of the run, and `texts` the unit's `TextChecksums`. The other arguments are fields of
        `FinishedUnit`.
        """
        add = self._sections.add
        index = {
            **self._identity,
            "blocks": [(place.split, place.first_row, place.rows, *place.section) for place in self._blocks],
            "tails": [
                tail and (tail.ids.itemsize, add(tail.ids.tobytes()), add(tail.starts.tobytes()))
                for tail in tails
            ],
            "statistics": [add(split_statistics.to_bytes()) for split_statistics in statistics],
            "excluded": asdict(excluded),
            "use": use.to_json(),
            "bad_records": bad_records,
            "removed": removed,
            "run": run,
            text_checksums.KEY: texts,
        }
        self._sections.end(index)
        return FinishedUnit(
            tuple(self._blocks), tuple(tails), tuple(statistics), excluded, use, bad_records, removed
        )


@contextlib.contextmanager
def create_unit(path: str, *, identity: Mapping[str, Any], splits: int) -> Iterator[UnitWriter]:
    """Creates the file of the unit with this `identity_of`. If the block raises, no file appears.

    Yields:
        A writer. The block calls its `end`.
    """
    with create_sections(path) as sections:
        yield UnitWriter(sections, identity=identity, splits=splits)


def find_unit(path: str, *, identity: Mapping[str, Any]) -> FinishedUnit | None:
    """Returns the unit with this `identity_of`, or None if no attempt has finished it or its file is damaged."""
    unit = read_if_intact(path, identity, lambda file, index: _read_unit(file, index, path))
    if unit is None or not all(map(filesystem.exists, filter(None, (unit.bad_records, unit.removed)))):
        return None
    return unit


def _read_unit(file: BinaryIO, index: Mapping[str, Any], path: str) -> FinishedUnit:
    blocks = tuple(
        BlockPlace(split, index["unit"], first_row, rows, Section(*section))
        for split, first_row, rows, *section in index["blocks"]
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
        EngineUse.from_json(index["use"]),
        index["bad_records"],
        index.get("removed"),  # runs of earlier versions removed only duplicates, and did not list them
    )


def _read_tail(file: Any, tail: list, path: str) -> Tail:
    itemsize, *sections = tail
    ids, starts = (read_section(file, Section(*section), path) for section in sections)
    return Tail.from_bytes(ids, starts, itemsize)
