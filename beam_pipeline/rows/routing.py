"""From a row's unit to its rank, from its rank to its shard and slot, and back."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Layout:
    """Where each of a split's rows stands: shard = π(rank) // shard_size, slot = π(rank) % shard_size.

    Attributes:
      split: the split's name; part of the permutation's key, so splits are shuffled differently.
      num_rows: rows in the split.
      shard_size: records in every shard but the last.
      shuffle: `global` for a seeded uniform permutation of all rows, `none` to keep the input's order.
      seed: the permutation's seed.
    """

    split: str
    num_rows: int
    shard_size: int
    shuffle: str
    seed: int

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
        """A layout by the size of the shards, or by their number: then all but the last hold equally many."""
        if shard_size is None:
            shard_size = max(1, -(-num_rows // num_shards))
        return cls(split, num_rows, shard_size, shuffle, seed)

    @property
    def num_shards(self) -> int:
        return -(-self.num_rows // self.shard_size)

    def records_in(self, shard: int) -> int:
        """The number of records of a shard; only the last may hold fewer than `shard_size`."""
        if not 0 <= shard < self.num_shards:
            raise IndexError(f"{self.split} has shards 0 to {self.num_shards - 1}, not {shard}")
        return min(self.shard_size, self.num_rows - shard * self.shard_size)

    def place(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The shards and slots (int64 arrays) of rows with these ranks."""
        place = np.asarray(rank)
        if self.shuffle == "global":
            place = self._permutation()(place)
        place = place.astype(np.int64)
        return place // self.shard_size, place % self.shard_size

    def rank(self, shard: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """The ranks (int64) of the rows that stand there: the inverse of `place`."""
        place = np.asarray(shard, np.int64) * self.shard_size + np.asarray(slot, np.int64)
        return self._permutation().inverse(place).astype(np.int64) if self.shuffle == "global" else place

    def _permutation(self) -> Permutation:
        return Permutation(self.num_rows, self.seed, self.split)
