"""Arguments that are whole numbers: steps, and the numbers of rows."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np

Index = int | slice | Sequence[int] | np.ndarray
"""One row, or several rows."""


def whole_number(name: str, value: SupportsIndex) -> int:
    """Returns an integer of any type, also NumPy's, as an int, which does not overflow.

    Raises:
        TypeError: If it is a float, a boolean or another type.
    """
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r:.80}, not a whole number")
    return operator.index(value)


def row_numbers(index: Index, length: int, place: str) -> np.ndarray:
    """Returns the numbers of rows, from 0: int64[rows], or int64[] for a single one.

    Args:
        index: As for a list: negative numbers count from the end.
        length: The number of rows.
        place: The dataset, for messages.

    Raises:
        IndexError: If there is no such row.
        TypeError: If the index has another type.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(length))
    rows = np.asarray(index)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.dtype == bool or not np.issubdtype(rows.dtype, np.integer) or rows.ndim > 1:
        raise TypeError(
            f"a row is given by an integer, rows by a list of them or a slice, not by {index!r:.80}"
        )
    # `length` may not fit into the type of the rows, nor may a number of uint64 fit into int64.
    clipped = np.minimum(rows, np.iinfo(np.int64).max) if rows.dtype == np.uint64 else rows
    numbers = clipped.astype(np.int64)
    is_wrong = (numbers < -length) | (numbers >= length)
    if is_wrong.any():
        raise IndexError(f"{place}: has {length} rows, but no row {rows[is_wrong].ravel()[0]}")
    return np.where(numbers < 0, numbers + length, numbers)
