"""From a row's unit to its rank, from its rank to its shard and slot, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from beam_pipeline.rows.permutation import Permutation


class RowTable:
    """How many rows every work unit gave to every split, and so each row's rank within its split.

    Rows are ranked by (unit, position in the unit). The row after the last unit stands for the tails: what
    was left at the units' ends, packed again.

    Args:
      rows: int64 [units + 1, splits], the numbers of rows.
    """

    def __init__(self, rows: np.ndarray):
        self.rows = np.asarray(rows, np.int64)
        self._first = np.zeros((len(self.rows) + 1, self.rows.shape[1]), np.int64)
        np.cumsum(self.rows, axis=0, out=self._first[1:])

    @property
    def totals(self) -> np.ndarray:
        """int64 [splits]: all rows of each split."""
        return self._first[-1]

    def first_rank(self, unit: int, split: int) -> int:
        """The rank of the unit's first row in the split."""
        return int(self._first[unit, split])

    def unit_of(self, rank: int, split: int) -> tuple[int, int]:
        """The unit that the row of this rank came from, and its position among that unit's rows."""
        unit = int(np.searchsorted(self._first[:, split], rank, side="right")) - 1
        return unit, rank - int(self._first[unit, split])

    def to_bytes(self) -> bytes:
        return np.int64(self.rows.shape[1]).tobytes() + self.rows.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> RowTable:
        splits = int(np.frombuffer(data, np.int64, 1)[0])
        return cls(np.frombuffer(data, np.int64, offset=8).reshape(-1, splits))

    def __reduce__(self) -> tuple[Callable[..., RowTable], tuple[bytes]]:
        return RowTable.from_bytes, (self.to_bytes(),)


@dataclass(frozen=True)
class Layout:
    """The place of each of a split's rows: the shard and the slot in it, numbered through as π(rank).

    Attributes:
      split: the split's name; part of the permutation's key, so splits are shuffled differently.
      num_rows: rows in the split.
      shard_size: records in every shard but the last; None if the number of shards is given.
      shuffle: `global` for a seeded uniform permutation of all rows, `none` to keep the input's order.
      seed: the permutation's seed.
      wanted_shards: the number of shards, if `shard_size` is None. The sizes differ by at most one row, the larger
        shards first. Fewer rows than that make a shard each.
    """

    split: str
    num_rows: int
    shard_size: int | None
    shuffle: str
    seed: int
    wanted_shards: int | None = None

    @classmethod
    def make(
        cls,
        *,
        split: str,
        num_rows: int,
        shard_size: int | None,
        num_shards: int | None,
        shuffle: str,
        seed: int,
    ) -> Layout:
        """A layout by the size of the shards, or by their number."""
        return cls(split, num_rows, shard_size, shuffle, seed, num_shards)

    @property
    def num_shards(self) -> int:
        if self.shard_size is None:
            return min(self.wanted_shards, self.num_rows)
        return -(-self.num_rows // self.shard_size)

    def records_in(self, shard: int) -> int:
        """The number of records of a shard."""
        if not 0 <= shard < self.num_shards:
            raise IndexError(f"{self.split} has shards 0 to {self.num_shards - 1}, not {shard}")
        large, num_large, small = self._sizes
        return large if shard < num_large else small

    def place(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shards and slots (int64 arrays) of rows with these ranks."""
        place = np.asarray(rank)
        if self.shuffle == "global":
            place = self._permutation()(place)
        place = place.astype(np.int64)
        large, num_large, small = self._sizes
        beyond = place - num_large * large
        of_small = beyond >= 0
        shard = np.where(of_small, num_large + beyond // small, place // large)
        return shard, np.where(of_small, beyond % small, place % large)

    def rank(self, shard: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """The ranks (int64) of the rows at these places: the inverse of `place`."""
        shard = np.asarray(shard, np.int64)
        large, num_large, small = self._sizes
        first = np.minimum(shard, num_large) * large + np.maximum(shard - num_large, 0) * small
        place = first + np.asarray(slot, np.int64)
        return self._permutation().inverse(place).astype(np.int64) if self.shuffle == "global" else place

    @property
    def _sizes(self) -> tuple[int, int, int]:
        """Records in each of the first shards, how many such shards there are, and records in each of the others."""
        if self.shard_size is None:
            small, num_large = divmod(self.num_rows, max(1, self.num_shards))
            return small + 1, num_large, max(1, small)
        num_large, rest = divmod(self.num_rows, self.shard_size)
        return self.shard_size, num_large, max(1, rest)

    def _permutation(self) -> Permutation:
        return Permutation(self.num_rows, self.seed, self.split)
