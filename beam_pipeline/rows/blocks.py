"""Blocks of rows: the arrays that pass between the pipeline's stages, thousands of rows an element."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from beam_pipeline.hashing import mix64
from beam_pipeline.tokenization.token_arrays import id_dtype, id_dtype_of

# The largest element between stages: some runners hold several in memory, and Dataflow refuses very large ones.
BLOCK_BYTES = 16 << 20

_VALUES_AT_A_TIME = 1 << 19  # bounds the widened copy that a checksum is computed from

_HEADER = struct.Struct("<QQBBB5x")  # rows, max_length, bytes per id, has starts, has slots


def rows_per_block(max_length: int, vocab_size: int) -> int:
    """How many rows a block holds at most."""
    return max(1, BLOCK_BYTES // (max_length * id_dtype(vocab_size).itemsize))


@dataclass(frozen=True)
class RowBlock:
    """Some rows of one split.

    Attributes:
      ids: uint16 or uint32 [rows, max_length]; token ids, padded at the end with the pad id.
      lengths: uint32 [rows]; how many leading positions hold tokens.
      starts: uint8 [rows, ceil(max_length / 8)], one bit a position (`np.packbits`), set where a document's
        first token in the row stands; None where the dataset has no features that need it.
      slots: uint32 [rows], the rows' slots in their shard; None before routing.
    """

    ids: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray | None = None
    slots: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: np.ndarray | slice, slots: np.ndarray | None = None) -> RowBlock:
        """The rows at `index`, with `slots` given to them."""
        starts = None if self.starts is None else self.starts[index]
        return RowBlock(self.ids[index], self.lengths[index], starts, slots)

    def to_bytes(self) -> bytes:
        rows, max_length = self.ids.shape
        header = _HEADER.pack(
            rows, max_length, self.ids.itemsize, self.starts is not None, self.slots is not None
        )
        parts = [header, np.ascontiguousarray(self.ids), np.asarray(self.lengths, np.uint32)]
        if self.starts is not None:
            parts.append(np.ascontiguousarray(self.starts))
        if self.slots is not None:
            parts.append(np.asarray(self.slots, np.uint32))
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> RowBlock:
        """Views into `data`: nothing is copied."""
        rows, max_length, itemsize, has_starts, has_slots = _HEADER.unpack_from(data)
        position = _HEADER.size

        def read(dtype: np.dtype | type, *shape: int) -> np.ndarray:
            nonlocal position
            count = int(np.prod(shape))
            array = np.frombuffer(data, dtype, count, position).reshape(shape)
            position += array.nbytes
            return array

        ids = read(id_dtype_of(itemsize), rows, max_length)
        lengths = read(np.uint32, rows)
        starts = read(np.uint8, rows, -(-max_length // 8)) if has_starts else None
        slots = read(np.uint32, rows) if has_slots else None
        return cls(ids, lengths, starts, slots)

    def __reduce__(self) -> tuple[Callable[..., RowBlock], tuple[bytes]]:
        return RowBlock.from_bytes, (self.to_bytes(),)


def rows_checksum(ids: np.ndarray, lengths: np.ndarray) -> int:
    """A checksum of a set of rows: it depends on what is in each row, not on the rows' order, and it adds up.

    The sum mod 2**64 of a hash of each row, so checksums of parts add up to the checksum of the whole. A row's
    hash is a multiply-add hash (Dietzfelbinger et al., 1997) of its ids and its length, finalised by SplitMix64.

    Args:
      ids: integers [rows, max_length].
      lengths: integers [rows].
    """
    multipliers = mix64(np.arange(ids.shape[1], dtype=np.uint64)) | np.uint64(1)
    total = 0
    step = max(1, _VALUES_AT_A_TIME // ids.shape[1])
    for first in range(0, len(ids), step):
        part = slice(first, first + step)
        # einsum, since `@` on integers walks memory column by column.
        hashes = np.einsum("ij,j->i", ids[part].astype(np.uint64), multipliers)
        hashes = mix64(hashes + (np.asarray(lengths[part], np.uint64) << np.uint64(40)))
        total += int(hashes.sum(dtype=np.uint64))
    return total % 2**64
