"""The rows that a filter selects by the dataset's indexes alone, as runs of ranks: no row is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from beam_pipeline.views.reading import FinishedSplit
from beam_pipeline.views.row_access import RowAccess


class Selection:
    """Some of a split's rows, in order, by index.

    All rows are in the order of the shards. Rows of some work units are in the order of the input, those of tails last.
    """

    def __init__(self, split: FinishedSplit, access: RowAccess, units: Sequence[int] | None = None):
        self._split, self._access = split, access
        self._runs = (
            None
            if units is None
            else unit_runs(split.row_table.rows[:, 0], split.tails, units, split.manifest["max_length"])
        )
        counts = [len(access)] if self._runs is None else self._runs[:, 1] - self._runs[:, 0]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def numbers(self, first: int, count: int) -> np.ndarray:
        """Returns the numbers of up to `count` rows from an index on, int64."""
        indices = np.arange(first, min(first + count, len(self)))
        if self._runs is None or not len(indices):
            return indices
        run = np.searchsorted(self._ends, indices, side="right")
        ranks = self._runs[run, 1] - (self._ends[run] - indices)
        return numbers_of_ranks(self._split, self._access, ranks)


def numbers_of_ranks(split: FinishedSplit, access: RowAccess, ranks: np.ndarray) -> np.ndarray:
    """Returns the numbers of the rows with these ranks before the shuffle, int64."""
    if not len(ranks):
        return np.empty(0, np.int64)
    shards, records = split.layout.place(ranks)
    return access.starts[shards] + records


def unit_runs(
    rows: np.ndarray, tails: np.ndarray, units: Sequence[int], max_length: int | None
) -> np.ndarray:
    """Returns the ranks of the rows that have tokens of some work units.

    Three units have 4, 2 and 0 rows, and tails of 3, 5 and 2 tokens, which make rows of 4, 4 and 2 tokens:

    >>> unit_runs(np.array([4, 2, 0, 3]), np.array([3, 5, 2]), [1, 2], max_length=4).tolist()
    [[4, 9]]
    >>> unit_runs(np.array([4, 2, 0, 3]), np.array([3, 5, 2]), [0], max_length=4).tolist()
    [[0, 4], [6, 7]]

    Args:
        rows: int64 [units + 1], the rows of each unit, and of the tails.
        tails: int64 [units], the tokens of each unit's tail.
        units: Numbers of units, ascending.
        max_length: The tokens of a row.

    Returns:
        int64 [runs, 2]: the first rank of each run and the one after its last, ascending and apart.
    """
    chosen = np.asarray(units, np.int64)
    ends = np.cumsum(rows)
    runs = [np.stack([ends[chosen] - rows[chosen], ends[chosen]], axis=1)]
    with_tail = chosen[tails[chosen] > 0]
    if len(with_tail) and rows[-1]:
        last = np.cumsum(tails)[with_tail]
        first_row = (last - tails[with_tail]) // max_length
        runs.append(np.stack([first_row, (last - 1) // max_length + 1], axis=1) + ends[-2])
    merged: list[list[int]] = []
    for first, end in np.concatenate(runs).tolist():
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        elif first < end:
            merged.append([first, end])
    return np.array(merged, np.int64).reshape(-1, 2)
