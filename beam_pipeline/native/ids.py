"""Sums over token ids, and copies of rows, by compiled code (ids.c) that needs no further copies, or by NumPy."""

from __future__ import annotations

import numpy as np

from beam_pipeline.native.library import rows_library

# Ids per step of a checksum in NumPy, which limits the size of their copy as uint64.
CHECKSUM_VALUES = 1 << 19


def count_ids(ids: np.ndarray, counts: np.ndarray) -> None:
    """Adds the number of occurrences of each id to `counts`, int64 [vocab_size].

    Args:
        ids: uint16 or uint32 [tokens]; the highest bit of a uint32 is no part of it.

    Raises:
        ValueError: If an id is not below `vocab_size`.
    """
    library = rows_library()
    if library is None:
        occurrences = np.bincount(ids & np.uint32(0x7FFFFFFF), minlength=len(counts))
        others = int(occurrences[len(counts) :].sum())
        counts += occurrences[: len(counts)]
    else:
        ids = np.ascontiguousarray(ids)
        others = library.tokenmill_count_ids(
            ids.ctypes.data, ids.itemsize, len(ids), counts.ctypes.data, len(counts)
        )
    if others:
        raise ValueError(f"{others} ids are not below the size of the vocabulary, {len(counts)}")


def hash_rows(ids: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """Returns the sum of the products of each row's ids with `multipliers`, mod 2**64: uint64 [rows].

    Args:
        ids: Integers [rows, max_length].
        multipliers: uint64 [max_length].
    """
    library = rows_library()
    hashes = np.empty(len(ids), np.uint64)
    if library is None or ids.dtype not in (np.uint16, np.uint32):
        step = max(1, CHECKSUM_VALUES // max(1, ids.shape[1]))
        for start in range(0, len(ids), step):
            rows = slice(start, start + step)
            # einsum, because `@` on integers reads memory column by column.
            hashes[rows] = np.einsum("ij,j->i", ids[rows].astype(np.uint64), multipliers)
        return hashes
    ids, multipliers = np.ascontiguousarray(ids), np.ascontiguousarray(multipliers)
    library.tokenmill_hash_rows(
        ids.ctypes.data, ids.itemsize, *ids.shape, multipliers.ctypes.data, hashes.ctypes.data
    )
    return hashes


def copy_rows(to: np.ndarray, slots: np.ndarray, source: np.ndarray, rows: np.ndarray) -> None:
    """Does `to[slots] = source[rows]` for arrays of the same shape but for the number of rows.

    Args:
        to: Contiguous.
        slots: int64 [copied rows], each below `len(to)`.
        source: Contiguous.
        rows: int64 [copied rows].

    Raises:
        IndexError: If there is no such row.
        ValueError: If the rows have another size.
    """
    if to.shape[1:] != source.shape[1:] or to.dtype != source.dtype:
        raise ValueError(f"rows of {source.shape[1:]} {source.dtype} are not of {to.shape[1:]} {to.dtype}")
    if not (to.flags.c_contiguous and source.flags.c_contiguous):
        raise ValueError("the rows are not contiguous")
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(source):
        raise IndexError(f"a row from {rows.min()} to {rows.max()} is not among the {len(source)} rows")
    library = rows_library()
    if library is None:
        to[slots] = source[rows]
        return
    slots, rows = np.ascontiguousarray(slots, np.int64), np.ascontiguousarray(rows, np.int64)
    size = source.itemsize * source.shape[1]
    library.tokenmill_copy_rows(
        to.ctypes.data, slots.ctypes.data, source.ctypes.data, rows.ctypes.data, len(rows), size
    )
