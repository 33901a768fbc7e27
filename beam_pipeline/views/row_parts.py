"""From the tokens of a row to its documents: pure arithmetic on the tokens of work units.

The tokens of all units are numbered as one stream. Packing these numbers in place of the ids gives, for each token of a
row, its position in the stream, and so its document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_pipeline.engines.token_arrays import Documents, ranges
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.sources.reading import describe_place
from beam_pipeline.sources.units import WorkUnit

PADDING = -1


@dataclass(frozen=True)
class DocumentPart:
    """A part of a row that came from one document."""

    first: int
    """Position of the part's first token in the row."""
    end: int
    """Position after the part's last token in the row."""
    unit: WorkUnit
    name: str
    """The document's file, as in `DocumentBatch`."""
    place: int
    """The document's place in the file, as in `DocumentBatch`."""
    number: int
    """The document's number among those of its unit in the split."""
    offset: int
    """Number of the document's tokens before this part."""
    tokens: int
    """Number of tokens of the whole document."""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole document."""
        return self.end - self.first == self.tokens

    def describe(self) -> str:
        """Describes the document's place, and the range of its tokens."""
        place = describe_place(self.unit, self.name, self.place)
        if self.is_whole:
            return f"{place}, whole"
        last = self.offset + self.end - self.first - 1
        return f"{place}, its tokens {self.offset:,} to {last:,} of {self.tokens:,}"


@dataclass(frozen=True)
class UnitDocuments:
    """A unit's documents in the split, with each document's file and place."""

    unit: WorkUnit
    documents: Documents
    names: list[str]
    places: list[int]


def numbers_of(documents: Documents, position: int) -> np.ndarray:
    """Returns the numbers of a document's tokens in its unit's stream, int64 [tokens].

    >>> numbers_of(Documents(np.zeros(5), np.array([2, 0, 3])), position=1)
    array([2, 3, 4])

    Args:
        documents: The documents of a unit.
        position: The document's index among those that have tokens. If there is no such document, the result is empty.
    """
    number = np.flatnonzero(documents.lengths > 0)[position : position + 1]
    return ranges(documents.starts[number], documents.lengths[number])


def pack_numbers(
    unit_documents: Sequence[UnitDocuments], config: Mapping[str, Any]
) -> list[tuple[np.ndarray, Tail | None]]:
    """Repacks each unit, with the tokens' numbers in the stream of all units in place of their ids.

    Returns:
        The rows (int64 [rows, max_length]) and the tail of each unit.
    """
    packed = []
    start = 0
    for unit in unit_documents:
        numbers = np.arange(start, start + len(unit.documents.ids))
        start += len(numbers)
        packer = Packer(
            packing=config["packing"], max_length=config["max_length"], pad_id=PADDING, keep_starts=False
        )
        blocks = [*packer.add(Documents(numbers, unit.documents.lengths))]
        last_block, tail = packer.finish()
        rows = [block.ids for block in (*blocks, last_block) if block is not None]
        packed.append((np.concatenate([np.empty((0, config["max_length"]), np.int64), *rows]), tail))
    return packed


def cut_row(unit_documents: Sequence[UnitDocuments], numbers: np.ndarray) -> Iterator[DocumentPart]:
    """Cuts a row into its documents.

    A unit has documents of 3, 4 and 3 tokens, and a row contains the tokens 2 to 7 of its stream:

    >>> unit = WorkUnit(0, "text", "/data/", (), 30)
    >>> documents = UnitDocuments(unit, Documents(np.zeros(10), np.array([3, 4, 3])), ["a", "a", "b"], [0, 9, 0])
    >>> for part in cut_row([documents], np.arange(2, 8)):
    ...     print(part.first, part.end, part.name, part.place, part.offset, part.tokens)
    0 1 a 0 2 3
    1 5 a 9 0 4
    5 6 b 0 0 3

    Args:
        unit_documents: The documents of the row's units.
        numbers: int64 [tokens], each token's number in the stream of all units.
    """
    # Documents are numbered over all units: their lengths, their units, and the number of each unit's first document.
    lengths = np.concatenate([unit.documents.lengths for unit in unit_documents])
    owners = np.repeat(np.arange(len(unit_documents)), [len(unit.names) for unit in unit_documents])
    unit_starts = np.cumsum([0, *(len(unit.names) for unit in unit_documents)])
    # A token's document is the first one that ends after it in the stream.
    ends = np.cumsum(lengths)
    document = np.searchsorted(ends, numbers, side="right")
    # A part ends where the document changes, or where tokens of the same document are skipped.
    bounds = np.flatnonzero((np.diff(document) != 0) | (np.diff(numbers) != 1)) + 1
    for start, end in zip([0, *bounds], [*bounds, len(numbers)], strict=True):
        index = int(document[start])
        unit = unit_documents[int(owners[index])]
        index_in_unit = index - int(unit_starts[owners[index]])
        tokens = int(lengths[index])
        offset = int(numbers[start] - (ends[index] - tokens))
        yield DocumentPart(
            first=int(start),
            end=int(end),
            unit=unit.unit,
            name=unit.names[index_in_unit],
            place=unit.places[index_in_unit],
            number=index_in_unit,
            offset=offset,
            tokens=tokens,
        )
