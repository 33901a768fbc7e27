"""Side inputs that every worker needs whole: what all units gave, and where their rows are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.sections import Section
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.rows.tails import TailTable

# The shards of each split that an earlier run finished, by the split's index: int64, ascending.
KeptTable = dict[int, np.ndarray]


@dataclass(frozen=True)
class UnitCounts:
    """What a work unit gave to each split.

    Attributes:
      unit: its number.
      rows: the number of rows.
      tails: tokens in the tail.
    """

    unit: int
    rows: tuple[int, ...]
    tails: tuple[int, ...]


def build_tail_table(counts: list[UnitCounts], num_units: int, num_splits: int) -> TailTable:
    """The sizes of all units' tails.

    Raises:
      AssertionError: if a unit is missing or counted twice.
    """
    sizes = np.zeros((num_units, num_splits), np.int64)
    seen = np.zeros(num_units, np.int64)
    for counted in counts:
        sizes[counted.unit] += counted.tails
        seen[counted.unit] += 1
    if (seen != 1).any():
        unit = int(np.flatnonzero(seen != 1)[0])
        raise AssertionError(f"work unit {unit} was counted {int(seen[unit])} times, not once")
    return TailTable(sizes)


def build_row_table(
    counts: list[UnitCounts], tails: TailTable, num_units: int, num_splits: int, max_length: int
) -> RowTable:
    """The rows of all units, and those packed from their tails."""
    rows = np.zeros((num_units + 1, num_splits), np.int64)
    for counted in counts:
        rows[counted.unit] = counted.rows
    rows[num_units] = -(-tails.totals // max_length)
    return RowTable(rows)


class BlockTable:
    """Where the row of each rank is kept.

    Args:
      blocks: int64 [blocks, 8], sorted. Each line is a block: its split, the rank of its first row, then the other
        numbers of its `BlockPlace`.
    """

    def __init__(self, blocks: np.ndarray):
        self._blocks = blocks

    def find(self, split: int, ranks: np.ndarray) -> Iterator[tuple[BlockPlace, np.ndarray, np.ndarray]]:
        """Finds the blocks that hold some rows of a split.

        Args:
          split: its index.
          ranks: int64 [rows], in any order.

        Yields:
          (where a block is, int64 indices into `ranks` of the rows in it, int64 numbers of these rows in the block).
        """
        begin, end = np.searchsorted(self._blocks[:, 0], [split, split + 1])
        blocks = self._blocks[begin:end]
        holding = np.searchsorted(blocks[:, 1], ranks, side="right") - 1
        order = np.argsort(holding, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(holding[order])) + 1):
            _, first_rank, unit, first, rows, *section = blocks[holding[chosen[0]]].tolist()
            place = BlockPlace(split, unit, first, rows, Section(*section))
            yield place, chosen, ranks[chosen] - first_rank

    @classmethod
    def from_bytes(cls, data: bytes) -> BlockTable:
        return cls(np.frombuffer(data, np.int64).reshape(-1, 8))

    def __reduce__(self) -> tuple[Callable[..., BlockTable], tuple[bytes]]:
        return BlockTable.from_bytes, (self._blocks.tobytes(),)


def build_block_table(places: list[BlockPlace], table: RowTable) -> BlockTable:
    """The places of all blocks of rows.

    Raises:
      AssertionError: if some rows are in no block, or in two.
    """
    blocks = np.array(
        sorted(
            (p.split, table.first_rank(p.unit, p.split) + p.first, p.unit, p.first, p.rows, *p.section)
            for p in places
        ),
        np.int64,
    ).reshape(-1, 8)
    for split, rows in enumerate(table.totals.tolist()):
        first_ranks, counts = blocks[blocks[:, 0] == split][:, [1, 4]].T
        # Each block begins where the one before ends, the first at 0, and the last ends with the split.
        if not np.array_equal(np.append(first_ranks, rows), np.cumsum(np.append(0, counts))):
            raise AssertionError(f"the blocks of split {split} do not hold each of its {rows} rows once")
    return BlockTable(blocks)


def build_kept_table(kept: Iterable[tuple[int, int]]) -> KeptTable:
    """The kept shards among these (split, shard) pairs, by split."""
    shards: dict[int, list[int]] = {}
    for split, shard in sorted(kept):
        shards.setdefault(split, []).append(shard)
    return {split: np.array(numbers, np.int64) for split, numbers in shards.items()}
