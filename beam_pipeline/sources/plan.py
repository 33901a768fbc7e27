"""Listing the input once and cutting it into work units, by the input and the options alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline import filesystem
from beam_pipeline.errors import UsageError
from beam_pipeline.sources.units import Part, WorkUnit

# A run of small files opens them one after the other: with more of them a unit would take minutes on a
# remote file system.
_MOST_PARTS = 1024

_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}


@dataclass(frozen=True)
class InputFile:
    """A file of the input: its path, its size in bytes, and the format that reads it."""

    path: str
    size: int
    format: str


@dataclass(frozen=True)
class Plan:
    """The input, listed: what is read, and in which pieces.

    Attributes:
      root: the longest folder that all files share, with its final `/`.
      files: sorted by path, each once.
      units: numbered from 0, in the order of (file name, offset).
    """

    root: str
    files: tuple[InputFile, ...]
    units: tuple[WorkUnit, ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)


def plan(patterns: Sequence[str], *, input_format: str, unit_bytes: int) -> Plan:
    """Lists the files that match and cuts them into units of about `unit_bytes`.

    A large file is cut into byte ranges, neighbouring small files share a unit. The order of `patterns` has no
    influence, and a file that several of them match is read once.

    Raises:
      UsageError: where a pattern matches no file, or a local file may not be read.
    """
    sizes: dict[str, int] = {}
    for pattern in patterns:
        found = filesystem.match(filesystem.absolute(pattern))
        if not found:
            raise UsageError(f"--input {pattern}: {_why_nothing(pattern)}")
        sizes.update(found)
    files = tuple(InputFile(path, sizes[path], _format(path, input_format)) for path in sorted(sizes))
    for file in files:
        if filesystem.is_local(file.path) and not os.access(file.path, os.R_OK):
            raise UsageError(f"--input: {file.path} cannot be read: its permissions do not allow it")
    root = _root([file.path for file in files])
    return Plan(root, files, tuple(_units(files, root, unit_bytes)))


def _why_nothing(pattern: str) -> str:
    if filesystem.is_local(pattern) and os.path.isdir(pattern):  # noqa: PTH112 (a pattern, not a path)
        return f"is a folder; name its files: '{pattern.rstrip('/')}/*'"
    return "no file matches"


def _format(path: str, input_format: str) -> str:
    if input_format != "auto":
        return input_format
    return _EXTENSIONS.get(os.path.splitext(path)[1].lower(), "text")  # noqa: PTH122 (may be a URL)


def _root(paths: list[str]) -> str:
    """The longest common folder, with its `/`. Names below it stay the same wherever the corpus is moved."""
    # The common prefix of a set of strings is that of its least and its greatest.
    first, last = (path.rpartition("/")[0] + "/" for path in (min(paths), max(paths)))
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[: first.rfind("/", 0, same) + 1]


def _units(files: Sequence[InputFile], root: str, unit_bytes: int) -> Iterator[WorkUnit]:
    index = 0
    gathered: list[Part] = []
    gathered_bytes = 0
    gathered_format = ""
    for file in files:
        for part in _cut(file, root, unit_bytes):
            size = part.end - part.start
            full = gathered_bytes + size > unit_bytes or len(gathered) == _MOST_PARTS
            if gathered and (full or file.format != gathered_format):
                yield WorkUnit(index, gathered_format, root, tuple(gathered))
                index, gathered, gathered_bytes = index + 1, [], 0
            gathered.append(part)
            gathered_bytes += size
            gathered_format = file.format
    if gathered:
        yield WorkUnit(index, gathered_format, root, tuple(gathered))


def _cut(file: InputFile, root: str, unit_bytes: int) -> Iterator[Part]:
    """A file's byte ranges; an empty file has none."""
    name = file.path[len(root) :]
    for start in range(0, file.size, unit_bytes):
        yield Part(name, start, min(start + unit_bytes, file.size))
