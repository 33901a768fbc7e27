"""Tokenized documents as flat NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FlatIds = tuple[np.ndarray, np.ndarray]
"""The ids of several texts (unsigned integers [tokens]) and the number in each text (int64 [texts])."""


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the narrower of uint16 and uint32 that can represent every id below `vocab_size`."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def id_dtype_of(itemsize: int) -> np.dtype:
    """Returns the type of ids that have `itemsize` bytes each: 2 or 4."""
    return np.dtype(f"u{itemsize}")


@dataclass(frozen=True)
class Documents:
    """Tokenized documents, concatenated."""

    ids: np.ndarray
    """Integers [tokens]: the ids of all documents."""
    lengths: np.ndarray
    """int64 [documents]: the number of tokens of each document. They sum to `tokens`."""

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
            np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts])
        )

    def select(self, selection: np.ndarray) -> Documents:
        """Returns the documents at the indices or the boolean mask `selection`, in that order.

        >>> Documents(np.array([5, 6, 7, 8]), np.array([1, 0, 3])).select(np.array([2, 0]))
        Documents(ids=array([6, 7, 8, 5]), lengths=array([3, 1]))
        """
        lengths = self.lengths[selection]
        if selection.dtype == bool:  # a mask of the ids is faster than their numbers
            return (
                self if selection.all() else Documents(self.ids[np.repeat(selection, self.lengths)], lengths)
            )
        return Documents(self.ids[ranges(self.starts[selection], lengths)], lengths)


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the integers of all ranges [start, start + length), concatenated, as int64.

    >>> ranges(np.array([10, 3, 20]), np.array([2, 0, 3]))
    array([10, 11, 20, 21, 22])
    """
    total = int(lengths.sum())
    result_starts = np.cumsum(lengths) - lengths
    return np.arange(total, dtype=np.int64) + np.repeat(starts - result_starts, lengths)
