"""The documents of a split, read again from the source one work unit at a time, and the rows that have their tokens."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from beam_pipeline.browsing.selection import numbers_of_ranks
from beam_pipeline.rows.packing import Tail
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.views.reading import FinishedSplit, Origin, Row
from beam_pipeline.views.row_access import RowAccess
from beam_pipeline.views.row_parts import DocumentPart, UnitDocuments, pack_numbers
from beam_pipeline.views.tracing import NotTraced, Tracer

_SECONDS = 10.0  # approximate limit of tokenizing units again


@dataclass(frozen=True)
class PackedUnit:
    """A work unit's documents, and where packing has put their tokens."""

    content: UnitDocuments
    rows: np.ndarray
    """int64 [rows, max_length]: each token's number in the unit's stream, -1 for padding."""
    tail: Tail | None

    @property
    def unit(self) -> WorkUnit:
        return self.content.unit

    def ids(self, number: int) -> np.ndarray:
        """Returns a document's ids, integers [tokens]."""
        documents = self.content.documents
        start = int(documents.starts[number])
        return documents.ids[start : start + int(documents.lengths[number])]

    def row_positions(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns where a document's tokens are: its rows among the unit's, and its places in the tail, both int64."""
        documents = self.content.documents
        start = int(documents.starts[number])
        end = start + int(documents.lengths[number])
        in_rows = np.flatnonzero(((self.rows >= start) & (self.rows < end)).any(axis=1))
        tail = np.empty(0, np.int64) if self.tail is None else self.tail.ids
        return in_rows, np.flatnonzero((tail >= start) & (tail < end))


class DocumentAccess:
    """The documents of a split. Several threads may use it; one at a time tokenizes.

    All methods raise NotTraced if the source is missing or has changed, or takes too long.
    """

    def __init__(self, split: FinishedSplit, access: RowAccess):
        self._split, self._access = split, access
        self._lock = threading.Lock()
        self._packed: PackedUnit | None = None

    @cached_property
    def _tracer(self) -> Tracer:
        return Tracer(self._split)

    def parts_of(self, origin: Origin, row: Row) -> list[DocumentPart]:
        """Returns the documents of a row."""
        with self._lock:
            return self._tracer.trace(origin, row, max_seconds=_SECONDS)

    def starts_in(self, origin: Origin, row: Row) -> np.ndarray | None:
        """Returns where documents begin in a row, without the source. See `Tracer.starts`."""
        with self._lock:
            return self._tracer.starts(origin, row)

    def unit(self, number: int) -> PackedUnit:
        """Returns the documents of a work unit.

        Raises:
            DataError: If the dataset is damaged.
        """
        unit = self._split.units[number]
        with self._lock:
            if self._packed is not None and self._packed.unit == unit:
                return self._packed
            [content] = self._tracer.documents((unit,), max_seconds=_SECONDS)
            [(rows, tail)] = pack_numbers([content], self._split.manifest["config"])
            if (len(rows), 0 if tail is None else len(tail.ids)) != (
                int(self._split.row_table.rows[number, 0]),
                int(self._split.tails[number]),
            ):
                raise NotTraced("the source has changed: it now gives other rows")
            self._packed = PackedUnit(content, rows, tail)
            return self._packed

    def rows_of(self, packed: PackedUnit, number: int) -> list[int]:
        """Returns the numbers of the rows that have tokens of a document, in the order of its tokens."""
        in_rows, in_tail = packed.row_positions(number)
        table, unit = self._split.row_table, packed.unit.index
        ranks = table.first_rank(unit, 0) + in_rows
        if len(in_tail):
            before = int(self._split.tails[:unit].sum())
            of_tails = np.unique((before + in_tail) // self._split.manifest["max_length"])
            ranks = np.concatenate([ranks, table.first_rank(len(table.rows) - 1, 0) + of_tails])
        return numbers_of_ranks(self._split, self._access, ranks).tolist()
