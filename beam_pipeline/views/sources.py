"""Summarizes a dataset's input by sources: the folders directly below the input's common folder, and its own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from beam_pipeline.sources.compression import extension
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.views.reading import FinishedSplit

_MOST_SOURCES = 30  # with a line of their own
_MOST_NAMES = 4  # in such a line


@dataclass
class Source:
    """Sums over the work units of a source."""

    names: tuple[str, ...]
    """A folder as `books/`, or the files of a kind as `*.txt`, below the common folder. Several if units share them."""
    units: int = 0
    bytes: int = 0
    """The approximate bytes of text, each counted once."""
    bytes_read: float = 0
    """The same, counted as often as they are read."""
    rows: list[int] = field(default_factory=list)
    """The rows of each split that are of these units alone, without those of tails."""

    @property
    def name(self) -> str:
        """The names in one line."""
        shown = self.names if len(self.names) <= _MOST_NAMES else (*self.names[:_MOST_NAMES], "…")
        return ", ".join(shown)

    @property
    def times(self) -> float:
        """How often the source is read: its weight in a mixture."""
        return self.bytes_read / max(1, self.bytes)


def source_names(unit: WorkUnit) -> tuple[str, ...]:
    """Returns the sorted names of the sources that a unit reads.

    >>> from beam_pipeline.sources.units import Part
    >>> source_names(WorkUnit(0, "text", "/data/", (Part("a/b/c.txt", 0, 9), Part("d.txt.gz", 0, 9)), 18))
    ('*.txt', 'a/')
    """
    names = set()
    for part in unit.parts:
        folder, slash, _ = part.name.partition("/")
        names.add(folder + slash if slash else f"*{extension(part.name)}")
    return tuple(sorted(names))


def summarize_sources(splits: Sequence[FinishedSplit]) -> list[Source]:
    """Returns the largest sources of a dataset's input, sorted by name, and the sum of the others.

    Raises:
        DataError: If a split's units.jsonl is missing or damaged.
    """
    sources: dict[tuple[str, ...], Source] = {}
    for number, split in enumerate(splits):
        rows = split.row_table.rows[:, 0]
        for unit in split.units:
            names = source_names(unit)
            source = sources.setdefault(names, Source(names, rows=[0] * len(splits)))
            source.rows[number] += int(rows[unit.index])
            if number == 0:  # the units of all splits are the same
                source.units += 1
                source.bytes += unit.bytes * (unit.repeat == 0)
                source.bytes_read += unit.bytes * unit.share
    largest = sorted(sources.values(), key=lambda source: (-source.bytes_read, source.names))
    shown, others = largest[:_MOST_SOURCES], largest[_MOST_SOURCES:]
    shown.sort(key=lambda source: source.names)
    return [*shown, _sum(others)] if others else shown


def _sum(sources: Sequence[Source]) -> Source:
    """Returns the sum of the sources that have no line of their own."""
    return Source(
        ("smaller ones", f"{len(sources):,}"),
        units=sum(source.units for source in sources),
        bytes=sum(source.bytes for source in sources),
        bytes_read=sum(source.bytes_read for source in sources),
        rows=[sum(rows) for rows in zip(*(source.rows for source in sources), strict=True)],
    )
