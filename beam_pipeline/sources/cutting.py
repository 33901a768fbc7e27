"""From files to work units: pure arithmetic on a listing, with the same result on every machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline.sources.units import Part, WorkUnit

# A unit of small files opens them one after the other. With more files than this, a unit would take minutes on a remote
# file system.
_MAX_PARTS = 1024


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file: its path, its size in bytes, and the format that reads it."""

    path: str
    size: int
    format: str


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a file that can be read independently: like `Part`, with its approximate size in bytes of text."""

    start: int
    end: int
    bytes: int
    batch_start: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file, and the ranges of it that are read."""

    file: InputFile
    ranges: Sequence[FileRange]
    """The ranges, in the order of the file."""
    repeats: int = 1
    """The number of times that all documents of the file are read."""
    share: float = 0.0
    """The share of the documents that is read once more."""


def byte_ranges(size: int, max_bytes: int) -> Iterator[FileRange]:
    """Cuts a file of `size` bytes into ranges of at most `max_bytes`. An empty file has none.

    >>> [(part.start, part.end) for part in byte_ranges(10, 4)]
    [(0, 4), (4, 8), (8, 10)]
    """
    for start in range(0, size, max_bytes):
        end = min(start + max_bytes, size)
        yield FileRange(start, end, end - start)


def common_folder(paths: Iterable[str]) -> str:
    """Returns the longest folder that all paths share, with its final `/`.

    Names relative to it stay the same wherever the files are moved together.

    >>> common_folder(["gs://b/data/a.txt", "gs://b/data/day/b.txt", "gs://b/days/c.txt"])
    'gs://b/'
    """
    folders = [path.rpartition("/")[0] + "/" for path in paths]
    prefix = os.path.commonprefix(folders)  # noqa: RUF071 (`commonpath` changes URLs)
    return prefix[: prefix.rfind("/") + 1]


def cut(listed: Sequence[ListedFile], root: str, unit_bytes: int) -> list[WorkUnit]:
    """Makes units of about `unit_bytes` of text. Neighbouring ranges share a unit as long as they fit.

    >>> files = [ListedFile(InputFile(f"/data/{name}", 6, "text"), list(byte_ranges(6, 4))) for name in "ab"]
    >>> for unit in cut(files, "/data/", 8):
    ...     print(unit.index, [(part.name, part.start, part.end) for part in unit.parts], unit.bytes)
    0 [('a', 0, 6)] 6
    1 [('b', 0, 6)] 6

    Args:
        listed: The files, sorted by path.
        root: The folder to which the names of parts are relative.
        unit_bytes: The size of a unit, in bytes of text.

    Returns:
        The units in the order of (repeat, file name, offset). All parts of a unit have the same format, repeat and
        share.
    """
    units: list[WorkUnit] = []
    parts: list[Part] = []
    size = 0
    # All parts of a unit have the same (repeat, share, format).
    unit_kind: tuple[int, float, str] = (0, 1.0, "")

    def finish() -> None:
        repeat, share, file_format = unit_kind
        if parts:
            units.append(WorkUnit(len(units), file_format, root, tuple(parts), size, repeat, share))
            parts.clear()

    for repeat in range(max((entry.repeats + 1 for entry in listed), default=0)):
        for entry in listed:
            # All documents in each full repeat, then a share of them, then none.
            share = 1.0 if repeat < entry.repeats else entry.share if repeat == entry.repeats else 0.0
            if not share:
                continue
            range_kind = (repeat, share, entry.file.format)
            name = entry.file.path[len(root) :]
            for file_range in entry.ranges:
                # A range that continues the last part extends it; any other range is a new part.
                extends = bool(parts) and parts[-1].name == name and parts[-1].end == file_range.start
                is_full = size + file_range.bytes > unit_bytes or (len(parts) == _MAX_PARTS and not extends)
                if range_kind != unit_kind or is_full:
                    finish()
                    unit_kind, size, extends = range_kind, 0, False
                if extends:
                    last_part = parts.pop()
                    parts.append(Part(name, last_part.start, file_range.end, last_part.batch_start))
                else:
                    parts.append(Part(name, file_range.start, file_range.end, file_range.batch_start))
                size += file_range.bytes
    finish()
    return units
