"""The place of each row: from its work unit to its rank, from its rank to its shard and slot, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from beam_pipeline.rows.permutation import Permutation


class RowTable:
    """The number of rows that every work unit has in every split, which determines each row's rank in its split.

    Rows are ranked by (unit, position in the unit). An entry after the last unit counts the rows that are packed from
    the units' tails.

    >>> table = RowTable(np.array([[4], [2], [1]]))  # two units with 4 and 2 rows, and a row of their tails
    >>> table.first_rank(unit=1, split=0), table.unit_of(rank=5, split=0)
    (4, (1, 1))

    Args:
        rows: int64 [units + 1, splits], the numbers of rows.
    """

    def __init__(self, rows: np.ndarray):
        self.rows = np.asarray(rows, np.int64)
        self._first_ranks = np.zeros((len(self.rows) + 1, self.rows.shape[1]), np.int64)
        np.cumsum(self.rows, axis=0, out=self._first_ranks[1:])

    @property
    def totals(self) -> np.ndarray:
        """int64 [splits]: the number of rows of each split."""
        return self._first_ranks[-1]

    def first_rank(self, unit: int, split: int) -> int:
        """Returns the rank of the unit's first row in the split."""
        return int(self._first_ranks[unit, split])

    def unit_of(self, rank: int, split: int) -> tuple[int, int]:
        """Returns the unit that the row with this rank came from, and the row's position in the unit."""
        unit = int(np.searchsorted(self._first_ranks[:, split], rank, side="right")) - 1
        return unit, rank - int(self._first_ranks[unit, split])

    def __reduce__(self) -> tuple[type[RowTable], tuple[np.ndarray]]:
        return RowTable, (self.rows,)


@dataclass(frozen=True)
class ShardLayout:
    """The place of each row of a split: its shard, and its slot in the shard.

    A row with rank r goes to place π(r). Places are numbered through all shards, slot by slot.
    """

    split: str
    """The split's name. It is part of the permutation's key, so each split is shuffled differently."""
    num_rows: int
    """The number of rows in the split."""
    shard_size: int | None
    """The number of records in every shard except the last. None if `requested_shards` is set instead."""
    shuffle: str
    """`global` for a seeded uniform permutation of all rows, `none` to keep the order of the input."""
    seed: int
    """The permutation's seed."""
    requested_shards: int | None = None
    """The number of shards, if `shard_size` is None. Shard sizes differ by at most one row, the larger shards first. If
    there are fewer rows than this, each row is a shard.
    """

    @property
    def num_shards(self) -> int:
        """The number of shards, none of which is empty."""
        if self.shard_size is None:
            return min(self.requested_shards, self.num_rows)
        return -(-self.num_rows // self.shard_size)

    def records_in(self, shard: int) -> int:
        """Returns the number of records in a shard."""
        if not 0 <= shard < self.num_shards:
            raise IndexError(f"{self.split} has shards 0 to {self.num_shards - 1}, not {shard}")
        large, num_large, small = self._sizes
        return large if shard < num_large else small

    def place(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shards and slots (int64 arrays) of the rows with these ranks.

        >>> layout = ShardLayout("train", num_rows=7, shard_size=None, shuffle="none", seed=0, requested_shards=3)
        >>> layout.place(np.arange(7))
        (array([0, 0, 0, 1, 1, 2, 2]), array([0, 1, 2, 0, 1, 0, 1]))
        """
        places = np.asarray(rank)
        if self.shuffle == "global":
            places = self._permutation()(places)
        places = places.astype(np.int64)
        # The larger shards come first, so the places from num_large * large on are in the smaller ones.
        large, num_large, small = self._sizes
        beyond_large = places - num_large * large
        is_in_small = beyond_large >= 0
        shard = np.where(is_in_small, num_large + beyond_large // small, places // large)
        return shard, np.where(is_in_small, beyond_large % small, places % large)

    def rank(self, shard: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Returns the ranks (int64) of the rows at these places. Inverts `place`."""
        shard = np.asarray(shard, np.int64)
        large, num_large, small = self._sizes
        shard_start = np.minimum(shard, num_large) * large + np.maximum(shard - num_large, 0) * small
        place = shard_start + np.asarray(slot, np.int64)
        return self._permutation().inverse(place).astype(np.int64) if self.shuffle == "global" else place

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """(records in each of the first shards, number of these shards, records in each of the others)."""
        if self.shard_size is None:
            small, num_large = divmod(self.num_rows, max(1, self.num_shards))
            return small + 1, num_large, max(1, small)
        num_large, remainder = divmod(self.num_rows, self.shard_size)
        return self.shard_size, num_large, max(1, remainder)

    def _permutation(self) -> Permutation:
        return Permutation(self.num_rows, self.seed, self.split)
