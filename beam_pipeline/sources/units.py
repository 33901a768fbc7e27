"""Work units: fixed pieces of the input that the pipeline reads independently, in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from beam_pipeline.support import filesystem
from beam_pipeline.support.texts import Texts


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one file."""

    name: str
    """The file's path below the plan's root."""
    start: int
    """Start of a half-open range: bytes of a text or jsonl file, row groups of a parquet file, or rows of an arrow
    file. A compressed file is a single part, in compressed bytes.
    """
    end: int
    """End of the range (exclusive)."""
    batch_start: tuple[int, int] = (0, 0)
    """Arrow only: (byte, row) at which a record batch begins, at or before `start`. Reading begins there."""


@dataclass(frozen=True)
class WorkUnit:
    """A portion of the input that one worker reads at a time: a piece of a large file, or several small files."""

    index: int
    """The unit's number, in the order of (repeat, file name, offset)."""
    format: str
    """The format that reads the unit: a key of `sources.reading.FORMATS`."""
    root: str
    """The folder to which the parts' names are relative."""
    parts: tuple[Part, ...]
    """The parts, in the order in which they are read."""
    bytes: int
    """The approximate size in bytes of text."""
    repeat: int = 0
    """For a mixture: the number of this repeat of the files, from 0."""
    share: float = 1.0
    """The share of the documents that is read, 1 for all of them."""

    def to_json(self) -> str:
        """Returns the unit as a line of JSON."""
        data = {
            "unit": self.index,
            "format": self.format,
            "root": self.root,
            "parts": [
                [p.name, p.start, p.end, *(p.batch_start if any(p.batch_start) else ())] for p in self.parts
            ],
            "bytes": self.bytes,
            "repeat": self.repeat,
            "share": self.share,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, line: str) -> WorkUnit:
        """Inverts `to_json`."""
        data = json.loads(line)
        parts = tuple(Part(*part[:3], tuple(part[3:]) or (0, 0)) for part in data["parts"])
        return cls(
            data["unit"], data["format"], data["root"], parts, data["bytes"], data["repeat"], data["share"]
        )

    def __reduce__(self) -> tuple[Callable[..., WorkUnit], tuple[str]]:
        return WorkUnit.from_json, (self.to_json(),)


def write_plan(path: str, units: Iterable[WorkUnit]) -> None:
    """Writes the work units for the workers, one JSON line each."""
    filesystem.write_bytes(path, "".join(unit.to_json() + "\n" for unit in units).encode())


def read_plan(path: str) -> Iterator[WorkUnit]:
    """Reads the work units that `write_plan` wrote."""
    yield from map(WorkUnit.from_json, filesystem.read_bytes(path).decode().splitlines())


@dataclass(frozen=True)
class BadRecord:
    """A record that cannot become a document, with its place and the reason."""

    name: str
    """The file's path below the root."""
    place: int
    """The record's place in the file, as in `DocumentBatch.places`."""
    reason: str
    """One sentence for the user."""
    content: bytes = b""
    """The record's bytes, if it has any."""


@dataclass(frozen=True)
class Records:
    """Consecutive records of one file, as its format reads them. Blank records are included."""

    texts: Texts
    """The texts, of the records that have one."""
    places: np.ndarray
    """int64 [texts]: the place of each text's record, as in `DocumentBatch.places`."""
    bad_records: list[BadRecord] = field(default_factory=list)
    """The records without a text."""
    crc: int = 0
    """The CRC-32C of the bytes that the records were read from."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Other values of the records, by the name of a column: a value for each text, None where it has none."""


@dataclass(frozen=True)
class DocumentBatch:
    """Consecutive documents of one file."""

    name: str
    """The file's path below the root."""
    texts: Texts
    """The documents' texts."""
    places: np.ndarray
    """int64 [documents]: the place of each document in the file: the offset of its first byte (in the decompressed
    content, if the file is compressed), or its row number.
    """
    blank: int = 0
    """The number of records that were left out because they contain only white space."""
    bad_records: list[BadRecord] = field(default_factory=list)
    """The records that cannot become documents."""
    crc: int = 0
    """The CRC-32C of the bytes that the batch was read from."""
    overlong: int = 0
    """The number of conversations that were left out because a row is too short for them."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """See `Records.columns`."""

    def without(self, dropped: np.ndarray) -> DocumentBatch:
        """Returns the batch without the documents at these indices."""
        if not len(dropped):
            return self
        return self.take(np.delete(np.arange(len(self.texts)), dropped))

    def take(self, indices: np.ndarray | Sequence[int]) -> DocumentBatch:
        """Returns the batch with only the documents at these indices."""
        indices = np.asarray(indices, np.int64)
        columns = {name: [values[i] for i in indices.tolist()] for name, values in self.columns.items()}
        return replace(self, texts=self.texts.take(indices), places=self.places[indices], columns=columns)
