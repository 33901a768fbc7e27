"""From files to work units: pure arithmetic on a listing, with the same result on every machine."""

from __future__ import annotations

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
class Piece:
    """A range of a file that can be read on its own: like `Part`, with its approximate size in bytes of text."""

    start: int
    end: int
    bytes: int
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file, and what is read of it."""

    file: InputFile
    pieces: Sequence[Piece]
    """In their order in the file."""
    repeats: int = 1
    """How many times all its documents are read."""
    share: float = 0.0
    """The share of its documents that is read once more."""


def byte_ranges(size: int, max_bytes: int) -> Iterator[Piece]:
    """Cuts a file of `size` bytes into ranges of at most `max_bytes`. An empty file has none."""
    for start in range(0, size, max_bytes):
        end = min(start + max_bytes, size)
        yield Piece(start, end, end - start)


def common_folder(paths: Iterable[str]) -> str:
    """Returns the longest folder that all paths share, with its final `/`.

    Names relative to it stay the same wherever the files are moved together.
    """
    folders = [path.rpartition("/")[0] + "/" for path in paths]
    # The common prefix of a set of strings is the common prefix of its minimum and its maximum.
    first, last = min(folders), max(folders)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[: first.rfind("/", 0, same) + 1]


def cut(listed: Sequence[ListedFile], root: str, unit_bytes: int) -> list[WorkUnit]:
    """Makes units of about `unit_bytes` of text. Neighbouring pieces share a unit as long as they fit.

    Args:
        listed: The files, sorted by path.

    Returns:
        The units in the order of (repeat, file name, offset). All parts of a unit have the same format, repeat and
        share.
    """
    units: list[WorkUnit] = []
    parts: list[Part] = []
    size = 0
    # All parts of a unit have the same (repeat, share, format).
    kind: tuple[int, float, str] = (0, 1.0, "")

    def finish() -> None:
        repeat, share, name = kind
        if parts:
            units.append(WorkUnit(len(units), name, root, tuple(parts), size, repeat, share))
            parts.clear()

    for repeat in range(max((entry.repeats + 1 for entry in listed), default=0)):
        for entry in listed:
            # All documents in each full repeat, then a share of them, then none.
            share = 1.0 if repeat < entry.repeats else entry.share if repeat == entry.repeats else 0.0
            if not share:
                continue
            piece_kind = (repeat, share, entry.file.format)
            name = entry.file.path[len(root) :]
            for piece in entry.pieces:
                # A piece that continues the last part extends it; any other piece is a new part.
                extends = bool(parts) and parts[-1].name == name and parts[-1].end == piece.start
                full = size + piece.bytes > unit_bytes or (len(parts) == _MAX_PARTS and not extends)
                if piece_kind != kind or full:
                    finish()
                    kind, size, extends = piece_kind, 0, False
                if extends:
                    last = parts.pop()
                    parts.append(Part(name, last.start, piece.end, last.at))
                else:
                    parts.append(Part(name, piece.start, piece.end, piece.at))
                size += piece.bytes
    finish()
    return units
