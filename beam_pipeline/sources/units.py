"""Work units: the fixed pieces of input that the pipeline reads, each on its own and in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from beam_pipeline import filesystem


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one file.

    Attributes:
      name: the file's path below the plan's root.
      start, end: a half-open range: of bytes (of the file as it lies there: a compressed file is one part), of a
        parquet file's row groups, of an arrow file's rows.
      at: arrow: (byte, row) where a record batch begins, at or before `start`: reading may begin there.
    """

    name: str
    start: int
    end: int
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class WorkUnit:
    """What one worker reads at a time: one piece of a large file, or a run of small files.

    Attributes:
      index: the unit's number, counted in the order of (repeat, file name, offset).
      format: the source that reads it, a key of `sources.FORMATS`.
      root: what the parts' names are relative to.
      parts: read in order.
      bytes: about how much text it holds.
      repeat: which repeat of its files a mixture asks for, from 0.
      share: which share of its documents is taken, 1 for all of them.
    """

    index: int
    format: str
    root: str
    parts: tuple[Part, ...]
    bytes: int
    repeat: int = 0
    share: float = 1.0

    def to_json(self) -> str:
        data = {
            "unit": self.index,
            "format": self.format,
            "root": self.root,
            "parts": [[p.name, p.start, p.end, *(p.at if any(p.at) else ())] for p in self.parts],
            "bytes": self.bytes,
            "repeat": self.repeat,
            "share": self.share,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, line: str) -> WorkUnit:
        data = json.loads(line)
        parts = tuple(Part(*part[:3], tuple(part[3:]) or (0, 0)) for part in data["parts"])
        return cls(
            data["unit"], data["format"], data["root"], parts, data["bytes"], data["repeat"], data["share"]
        )

    def __reduce__(self) -> tuple[Callable[..., WorkUnit], tuple[str]]:
        return WorkUnit.from_json, (self.to_json(),)


def write_plan(path: str, units: Iterable[WorkUnit]) -> None:
    """Writes the work units for the workers, a JSON line each."""
    filesystem.write_bytes(path, "".join(unit.to_json() + "\n" for unit in units).encode())


def read_plan(path: str) -> Iterator[WorkUnit]:
    """The work units that `write_plan` wrote."""
    yield from map(WorkUnit.from_json, filesystem.read_bytes(path).decode().splitlines())


@dataclass(frozen=True)
class BadRecord:
    """A record that is no document: where it stands and what is wrong with it.

    Attributes:
      name: the file's path below the root.
      place: where it stands, as in `DocumentBatch.places`.
      reason: one sentence for the user.
      content: the record's bytes, where it has any.
    """

    name: str
    place: int
    reason: str
    content: bytes = b""


@dataclass(frozen=True)
class Records:
    """Some records of one file, in its order, as a format reads them: blank ones are still there.

    Attributes:
      texts: the texts of those that have one.
      places: int64 [texts], where each record stands, as in `DocumentBatch.places`.
      bytes: int64 [texts], the length of each text in UTF-8.
      bad: the records that have no text.
    """

    texts: list[str]
    places: np.ndarray
    bytes: np.ndarray
    bad: list[BadRecord] = field(default_factory=list)


@dataclass(frozen=True)
class DocumentBatch:
    """Some documents of one file, in its order.

    Attributes:
      name: the file's path below the root.
      texts: the documents.
      places: int64 [documents], where each stands in the file: its first byte (in the decompressed file where
        it is compressed), or its row number.
      bytes: int64 [documents], the length of each text in UTF-8.
      blank: how many records were left out because they hold nothing but white space.
      bad: the records of this stretch that are no documents.
    """

    name: str
    texts: list[str]
    places: np.ndarray
    bytes: np.ndarray
    blank: int = 0
    bad: list[BadRecord] = field(default_factory=list)

    def without(self, dropped: np.ndarray) -> DocumentBatch:
        """The batch less the documents with these numbers (integers, counted within the batch)."""
        kept = np.delete(np.arange(len(self.texts)), dropped)
        texts = [self.texts[index] for index in kept.tolist()]
        return replace(self, texts=texts, places=self.places[kept], bytes=self.bytes[kept])


def utf8_sizes(texts: list[str]) -> np.ndarray:
    """int64 [texts]: the length of each in UTF-8."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ascii_only = np.fromiter(map(str.isascii, texts), bool, len(texts))
    for index in np.flatnonzero(~ascii_only).tolist():
        sizes[index] = len(texts[index].encode())
    return sizes
