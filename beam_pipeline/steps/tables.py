"""Side inputs that every worker needs as a whole: the counts of all units, and the places of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.sections import Section
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.rows.tails import TailTable

KeptTable = dict[int, np.ndarray]
"""The shards that an earlier run finished, by the split's index: int64, ascending."""


@dataclass(frozen=True)
class UnitCounts:
    """The numbers of rows and tail tokens that a work unit contributes to each split."""

    unit: int
    """The unit's number."""
    rows: tuple[int, ...]
    """The number of rows, by the split's index."""
    tails: tuple[int, ...]
    """The number of tokens in the tail, by the split's index."""


def build_tail_table(counts: list[UnitCounts], num_units: int, num_splits: int) -> TailTable:
    """Builds the table of the sizes of all units' tails.

    Raises:
        AssertionError: If a unit is missing or counted twice.
    """
    sizes = np.zeros((num_units, num_splits), np.int64)
    times_counted = np.zeros(num_units, np.int64)
    for unit_counts in counts:
        sizes[unit_counts.unit] += unit_counts.tails
        times_counted[unit_counts.unit] += 1
    if (times_counted != 1).any():
        unit = int(np.flatnonzero(times_counted != 1)[0])
        raise AssertionError(f"work unit {unit} was counted {int(times_counted[unit])} times, not once")
    return TailTable(sizes)


def build_row_table(
    counts: list[UnitCounts], tails: TailTable, num_units: int, num_splits: int, max_length: int | None
) -> RowTable:
    """Builds the table of the number of rows from each unit, and from the tails.

    `max_length` is None if there are no tails.
    """
    rows = np.zeros((num_units + 1, num_splits), np.int64)
    for unit_counts in counts:
        rows[unit_counts.unit] = unit_counts.rows
    rows[num_units] = -(-tails.totals // (max_length or 1))
    return RowTable(rows)


class BlockTable:
    """Finds the block that contains the row of a rank.

    Args:
        blocks: int64 [blocks, 8], sorted. The columns are the split, the rank of the block's first row, and the other
            numbers of its `BlockPlace`.
    """

    def __init__(self, blocks: np.ndarray):
        self._blocks = blocks

    def find(self, split: int, ranks: np.ndarray) -> Iterator[tuple[BlockPlace, np.ndarray, np.ndarray]]:
        """Finds the blocks that contain some rows of a split.

        Args:
            split: The split's index.
            ranks: int64 [rows], in any order.

        Yields:
            The place of a block, the int64 indices into `ranks` of its rows, and the int64 numbers of these rows in the
            block.
        """
        begin, end = np.searchsorted(self._blocks[:, 0], [split, split + 1])
        blocks = self._blocks[begin:end]
        block_index = np.searchsorted(blocks[:, 1], ranks, side="right") - 1
        order = np.argsort(block_index, kind="stable")
        for row_indices in np.split(order, np.flatnonzero(np.diff(block_index[order])) + 1):
            _, first_rank, unit, first_row, rows, *section = blocks[block_index[row_indices[0]]].tolist()
            place = BlockPlace(split, unit, first_row, rows, Section(*section))
            yield place, row_indices, ranks[row_indices] - first_rank

    def spans(self, split: int, first_rank: int, end_rank: int) -> Iterator[tuple[BlockPlace, int, int]]:
        """Finds the blocks that contain the rows with the ranks from `first_rank` to before `end_rank`.

        There must be at least one such row.

        Yields:
            The place of a block, and the numbers in the block of the first of these rows and of the row after the last.
        """
        begin, end = np.searchsorted(self._blocks[:, 0], [split, split + 1])
        blocks = self._blocks[begin:end]
        block_index = np.searchsorted(blocks[:, 1], [first_rank, end_rank - 1], side="right") - 1
        for block in blocks[block_index[0] : block_index[1] + 1]:
            _, block_rank, unit, first_row, rows, *section = block.tolist()
            place = BlockPlace(split, unit, first_row, rows, Section(*section))
            yield place, max(0, first_rank - block_rank), min(rows, end_rank - block_rank)


def build_block_table(places: list[BlockPlace], table: RowTable) -> BlockTable:
    """Builds the table of the places of all blocks.

    Raises:
        AssertionError: If a row is in no block or in several.
    """
    blocks = np.array(
        sorted(
            (
                place.split,
                table.first_rank(place.unit, place.split) + place.first_row,
                place.unit,
                place.first_row,
                place.rows,
                *place.section,
            )
            for place in places
        ),
        np.int64,
    ).reshape(-1, 8)
    for split, rows in enumerate(table.totals.tolist()):
        first_ranks, counts = blocks[blocks[:, 0] == split][:, [1, 4]].T
        # The first block must begin at rank 0, each other one where its predecessor ends, and the last must end with
        # the split.
        if not np.array_equal(np.append(first_ranks, rows), np.cumsum(np.append(0, counts))):
            raise AssertionError(f"the blocks of split {split} do not contain each of its {rows} rows once")
    return BlockTable(blocks)


def build_kept_table(kept_shards: Iterable[tuple[int, int]]) -> KeptTable:
    """Groups (split, shard) pairs of kept shards by split."""
    shards: dict[int, list[int]] = {}
    for split, shard in sorted(kept_shards):
        shards.setdefault(split, []).append(shard)
    return {split: np.array(indices, np.int64) for split, indices in shards.items()}
