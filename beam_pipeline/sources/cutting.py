"""From files to work units: pure arithmetic on a listing, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline.sources.units import Part, WorkUnit

# A run of small files opens them one after the other: with more of them a unit would take minutes on a
# remote file system.
_MOST_PARTS = 1024


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the input: its path, its size in bytes, and the format that reads it."""

    path: str
    size: int
    format: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a file that can be read on its own: as in `Part`, and about how many bytes of text it has."""

    start: int
    end: int
    bytes: int
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file with what is read of it.

    Attributes:
      file: the file.
      pieces: in their order.
      repeats: how often all its documents are taken.
      share: of a further repeat only this share of the documents is taken.
    """

    file: InputFile
    pieces: Sequence[Piece]
    repeats: int = 1
    share: float = 0.0


def byte_ranges(size: int, most: int) -> Iterator[Piece]:
    """A file's bytes in ranges of at most `most`; an empty file has none."""
    for start in range(0, size, most):
        end = min(start + most, size)
        yield Piece(start, end, end - start)


def common_folder(paths: Iterable[str]) -> str:
    """The longest folder that all paths share, with its `/`. Names below it stay the same wherever the files are
    moved to."""
    folders = [path.rpartition("/")[0] + "/" for path in paths]
    # The common prefix of a set of strings is that of its least and its greatest.
    first, last = min(folders), max(folders)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[: first.rfind("/", 0, same) + 1]


def cut(listed: Sequence[Listed], root: str, unit_bytes: int) -> list[WorkUnit]:
    """Makes units of about `unit_bytes` of text: neighbouring pieces share one while they fit.

    Args:
      listed: the files in the order of their paths.
      root: what names are relative to.
      unit_bytes: a unit has at most so much unless a single piece has more.

    Returns:
      The units in the order of (repeat, file name, offset). A unit's parts have one format, repeat and share.
    """
    units: list[WorkUnit] = []
    parts: list[Part] = []
    size = 0
    kind: tuple[int, float, str] = (0, 1.0, "")

    def finish() -> None:
        repeat, share, name = kind
        if parts:
            units.append(WorkUnit(len(units), name, root, tuple(parts), size, repeat, share))
            parts.clear()

    for repeat in range(max((entry.repeats + 1 for entry in listed), default=0)):
        for entry in listed:
            share = 1.0 if repeat < entry.repeats else entry.share if repeat == entry.repeats else 0.0
            if not share:
                continue
            own = (repeat, share, entry.file.format)
            name = entry.file.path[len(root) :]
            for piece in entry.pieces:
                goes_on = bool(parts) and parts[-1].name == name and parts[-1].end == piece.start
                full = size + piece.bytes > unit_bytes or (len(parts) == _MOST_PARTS and not goes_on)
                if own != kind or full:
                    finish()
                    kind, size, goes_on = own, 0, False
                if goes_on:
                    last = parts.pop()
                    parts.append(Part(name, last.start, piece.end, last.at))
                else:
                    parts.append(Part(name, piece.start, piece.end, piece.at))
                size += piece.bytes
    finish()
    return units
