"""The side inputs that every worker needs whole: tables of all units, passed as bytes and parsed once a worker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from beam_pipeline.rows.routing import RowTable
from beam_pipeline.rows.tails import TailTable
from beam_pipeline.steps.tokenize import Block, UnitCounts

# A runner hands the same bytes to every call of a bundle, often in one object, whose hash Python keeps.
row_table = lru_cache(maxsize=2)(RowTable.from_bytes)
tail_table = lru_cache(maxsize=2)(TailTable.from_bytes)


def build_tail_table(counts: list[UnitCounts], num_units: int, num_splits: int) -> bytes:
    """The `TailTable` of all units, as bytes.

    Raises:
      AssertionError: if a unit is missing or counted twice.
    """
    sizes = np.zeros((num_units, num_splits), np.int64)
    seen = np.zeros(num_units, np.int64)
    for unit, _, tails in counts:
        sizes[unit] += tails
        seen[unit] += 1
    if (seen != 1).any():
        unit = int(np.flatnonzero(seen != 1)[0])
        raise AssertionError(f"work unit {unit} was counted {int(seen[unit])} times, not once")
    return TailTable(sizes).to_bytes()


def build_row_table(
    counts: list[UnitCounts], tails: bytes, num_units: int, num_splits: int, max_length: int
) -> bytes:
    """The `RowTable` of all units and of the rows packed from their tails, as bytes."""
    rows = np.zeros((num_units + 1, num_splits), np.int64)
    for unit, of_splits, _ in counts:
        rows[unit] = of_splits
    rows[num_units] = -(-tail_table(tails).totals // max_length)
    return RowTable(rows).to_bytes()


def build_block_table(blocks: list[Block]) -> bytes:
    """Where all blocks of rows are kept: int64 [blocks, 7], as bytes."""
    return np.array(sorted(blocks), np.int64).tobytes()


def build_kept_table(kept: Iterable[tuple[int, int]]) -> bytes:
    """The (split, shard) pairs of the shards that are kept, sorted, as bytes."""
    return np.array(sorted(kept), np.int64).reshape(-1, 2).tobytes()


@lru_cache(maxsize=16)
def kept_shards(table: bytes, split: int) -> np.ndarray:
    """int64, ascending: the shards of the split that are kept."""
    pairs = np.frombuffer(table, np.int64).reshape(-1, 2)
    return pairs[pairs[:, 0] == split, 1]
