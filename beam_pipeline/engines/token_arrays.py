"""Tokenized documents as flat NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from beam_pipeline.support.arrow import pa

FlatIds = tuple[np.ndarray, np.ndarray]
"""The ids of several texts (unsigned integers [tokens]) and the number in each text (int64 [texts])."""


TARGET = np.uint32(1 << 31)
"""The bit of a target of the loss. Between a conversation's tokenization and its shards, its ids have it."""


def with_targets(ids: np.ndarray, is_target: np.ndarray) -> np.ndarray:
    """Returns ids with the bit of those that are targets: uint32 [tokens].

    >>> ids_of(with_targets(np.array([5, 6]), np.array([False, True])))
    array([5, 6], dtype=uint32)
    """
    return ids.astype(np.uint32) | np.where(is_target, TARGET, np.uint32(0))


def has_target_bits(ids: np.ndarray) -> bool:
    """Returns whether ids have bits of targets, which may all be 0: those of two bytes have none."""
    return ids.dtype == np.uint32


def ids_of(ids: np.ndarray) -> np.ndarray:
    """Returns ids without the bits of targets."""
    return ids & ~TARGET if has_target_bits(ids) else ids


def targets_of(ids: np.ndarray) -> np.ndarray:
    """Returns which ids have the bit of a target: bool, of the same shape.

    >>> targets_of(with_targets(np.array([5, 6]), np.array([False, True])))
    array([False,  True])
    """
    return ids >= TARGET if has_target_bits(ids) else np.zeros(ids.shape, bool)


def id_dtype(vocab_size: int, *, has_targets: bool = False) -> np.dtype:
    """Returns the narrower of uint16 and uint32 that can represent every id below `vocab_size`.

    With `has_targets`, ids have the bits of targets, too.
    """
    return np.dtype(np.uint16 if vocab_size <= 2**16 and not has_targets else np.uint32)


def id_dtype_of(itemsize: int) -> np.dtype:
    """Returns the type of ids that have `itemsize` bytes each: 2 or 4."""
    return np.dtype(f"u{itemsize}")


@dataclass(frozen=True)
class Documents:
    """Tokenized documents, concatenated."""

    ids: np.ndarray
    """Integers [tokens]: the ids of all documents. Those of conversations have the bits of targets."""
    lengths: np.ndarray
    """int64 [documents]: the number of tokens of each document. They sum to `tokens`."""
    columns: pa.Table | None = field(default=None, repr=False)
    """The `column_table` of the documents' records; None without `--record_columns`."""

    @property
    def starts(self) -> np.ndarray:
        """int64 [documents]: where each document begins in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    @classmethod
    def join(cls, parts: Sequence[Documents]) -> Documents:
        """Concatenates the documents of one or more parts."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            joined_columns([part.columns for part in parts]),
        )

    def cut(self, count: int) -> tuple[Documents, Documents]:
        """Returns the first `count` documents, and the others."""
        tokens = int(self.lengths[:count].sum())
        columns = (None, None) if self.columns is None else (self.columns[:count], self.columns[count:])
        return (
            Documents(self.ids[:tokens], self.lengths[:count], columns[0]),
            Documents(self.ids[tokens:], self.lengths[count:], columns[1]),
        )

    def select(self, selection: np.ndarray) -> Documents:
        """Returns the documents at the indices or the boolean mask `selection`, in that order.

        >>> Documents(np.array([5, 6, 7, 8]), np.array([1, 0, 3])).select(np.array([2, 0]))
        Documents(ids=array([6, 7, 8, 5]), lengths=array([3, 1]))
        """
        if selection.dtype == bool and selection.all():
            return self
        lengths, columns = self.lengths[selection], selected_columns(self.columns, selection)
        if selection.dtype == bool:  # a mask of the ids is faster than their numbers
            return Documents(self.ids[np.repeat(selection, self.lengths)], lengths, columns)
        return Documents(self.ids[ranges(self.starts[selection], lengths)], lengths, columns)


def joined_columns(parts: Sequence[pa.Table | None]) -> pa.Table | None:
    """Concatenates the columns of several parts, all of which have some, or none of which has."""
    if parts[0] is None:
        return None
    return pa.concat_tables(parts)


def selected_columns(columns: pa.Table | None, selection: np.ndarray | slice) -> pa.Table | None:
    """Returns the rows of columns at indices, a mask or a slice, if there are columns."""
    if columns is None or isinstance(selection, slice):
        return columns and columns[selection]
    return columns.take(np.flatnonzero(selection) if selection.dtype == bool else selection)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the integers of all ranges [start, start + length), concatenated, as int64.

    >>> ranges(np.array([10, 3, 20]), np.array([2, 0, 3]))
    array([10, 11, 20, 21, 22])
    """
    total = int(lengths.sum())
    result_starts = np.cumsum(lengths) - lengths
    return np.arange(total, dtype=np.int64) + np.repeat(starts - result_starts, lengths)


def sums(lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums consecutive groups of numbers.

    >>> sums(np.array([3, 1, 2, 5]), np.array([2, 0, 2]))
    array([4, 0, 7])

    Args:
        lengths: Integers [numbers].
        counts: Integers [groups], the size of each group. They add up to `numbers`.

    Returns:
        int64 [groups].
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(counts)]
    return np.diff(ends, prepend=0)
