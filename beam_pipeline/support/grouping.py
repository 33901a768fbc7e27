"""Grouping the items of arrays by keys."""

from __future__ import annotations

import numpy as np


def indices_by_key(keys: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of each distinct key, in ascending order of the keys.

    >>> indices_by_key(np.array([7, 3, 7]))
    [array([1]), array([0, 2])]
    """
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []


def run_starts(differs: np.ndarray, count: int) -> np.ndarray:
    """Returns the index at which the run of equal items of each of `count` items begins, int64.

    >>> run_starts(np.array([False, True, False]), 4)
    array([0, 0, 2, 2])

    Args:
        differs: bool [count - 1], whether each item but the first differs from the one before.
        count: The number of items.
    """
    starts = np.arange(count)
    starts[1:][~differs] = 0
    return np.maximum.accumulate(starts)
