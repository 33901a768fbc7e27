"""Work units: the fixed pieces of input that the pipeline reads, each on its own and in any order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Part:
    """A piece of one file.

    Attributes:
      name: the file's path below the plan's root.
      start, end: a half-open range: of bytes for line formats and whole files, of row groups for parquet.
    """

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class WorkUnit:
    """What one worker reads at a time: one piece of a large file, or a run of small files.

    Attributes:
      index: the unit's number, counted in the order of (file name, offset).
      format: the source that reads it, a key of `sources.FORMATS`.
      root: what the parts' names are relative to.
      parts: read in order.
    """

    index: int
    format: str
    root: str
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """The size of its parts, where they are byte ranges."""
        return sum(part.end - part.start for part in self.parts)

    def to_json(self) -> str:
        parts = [[part.name, part.start, part.end] for part in self.parts]
        return json.dumps({"unit": self.index, "format": self.format, "root": self.root, "parts": parts})

    @classmethod
    def from_json(cls, line: str) -> WorkUnit:
        data = json.loads(line)
        parts = tuple(Part(*part) for part in data["parts"])
        return cls(data["unit"], data["format"], data["root"], parts)


@dataclass(frozen=True)
class BadRecord:
    """A record that is no document: where it stands and what is wrong with it.

    Attributes:
      name: the file's path below the root.
      place: where it stands, as in `DocumentBatch.places`.
      reason: one sentence for the user.
      content: the record's bytes.
    """

    name: str
    place: int
    reason: str
    content: bytes = b""


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


@dataclass(frozen=True)
class ReadOptions:
    """How records become documents.

    Attributes:
      text_key: the key (jsonl) that holds the text.
    """

    text_key: str = "text"


def utf8_sizes(texts: list[str]) -> np.ndarray:
    """int64 [texts]: the length of each in UTF-8."""
    sizes = (len(text) if text.isascii() else len(text.encode()) for text in texts)
    return np.fromiter(sizes, np.int64, len(texts))
