"""Blocks of rows: the arrays that the pipeline's stages exchange, with thousands of rows each."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from beam_pipeline.engines.token_arrays import id_dtype, id_dtype_of, joined_columns, selected_columns
from beam_pipeline.native.ids import hash_rows
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.hashing import mix64

# Maximum size of an element between stages. Some runners hold several in memory, and Dataflow rejects very large ones.
BLOCK_BYTES = 16 << 20

# Rows, max_length, bytes per id, has starts, has slots, bytes of columns.
_HEADER = struct.Struct("<QQBBB5xQ")


def rows_per_block(max_length: int, vocab_size: int) -> int:
    """Returns the maximum number of rows in a block."""
    return max(1, BLOCK_BYTES // (max_length * id_dtype(vocab_size).itemsize))


@dataclass(frozen=True)
class RowBlock:
    """Some rows of one split."""

    ids: np.ndarray
    """uint16 or uint32 [rows, max_length]: token ids, padded with the pad id. Those of conversations have the bits of
    targets (`engines.token_arrays.TARGET`).
    """
    lengths: np.ndarray
    """uint32 [rows]: the number of tokens in each row, without padding."""
    starts: np.ndarray | None = None
    """uint8 [rows, ceil(max_length / 8)]: one bit per position (`np.packbits`), set at the first token that a document
    has in the row. None if no feature of the dataset needs it.
    """
    slots: np.ndarray | None = None
    """uint32 [rows]: the rows' slots in their shard. None before routing."""
    columns: pa.Table | None = None
    """The `column_table` of the rows' records. None without `--record_columns`."""

    def __len__(self) -> int:
        return len(self.ids)

    def divide(self) -> Iterator[RowBlock]:
        """Cuts the block into blocks of at most `rows_per_block` rows."""
        rows = max(1, BLOCK_BYTES // (self.ids.shape[1] * self.ids.itemsize))
        for start in range(0, len(self), rows):
            yield self.take(slice(start, start + rows))

    def take(self, index: np.ndarray | slice, slots: np.ndarray | None = None) -> RowBlock:
        """Returns the rows at `index`, and sets their slots."""
        starts = None if self.starts is None else self.starts[index]
        columns = selected_columns(self.columns, index)
        return RowBlock(self.ids[index], self.lengths[index], starts, slots, columns)

    @classmethod
    def concatenate(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """Returns the rows of several blocks, without slots."""
        starts = None if blocks[0].starts is None else np.concatenate([block.starts for block in blocks])
        ids = np.concatenate([block.ids for block in blocks])
        lengths = np.concatenate([block.lengths for block in blocks])
        return cls(ids, lengths, starts, columns=joined_columns([block.columns for block in blocks]))

    def parts(self) -> list[bytes | np.ndarray]:
        """Returns what `from_bytes` reads, in parts: the header, the arrays, and the bytes of the columns."""
        rows, max_length = self.ids.shape
        columns = columns_to_bytes(self.columns)
        header = _HEADER.pack(
            rows, max_length, self.ids.itemsize, self.starts is not None, self.slots is not None, len(columns)
        )
        arrays = [self.ids, np.asarray(self.lengths, np.uint32)]
        if self.starts is not None:
            arrays.append(self.starts)
        if self.slots is not None:
            arrays.append(np.asarray(self.slots, np.uint32))
        return [header, *map(np.ascontiguousarray, arrays), columns]

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> RowBlock:
        """Makes a block of views into `data`, without copying."""
        rows, max_length, itemsize, has_starts, has_slots, column_bytes = _HEADER.unpack_from(data)
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
        columns = columns_from_bytes(read(np.uint8, column_bytes)) if column_bytes else None
        return cls(ids, lengths, starts, slots, columns)

    def __reduce__(self) -> tuple[Callable[..., RowBlock], tuple[bytes]]:
        return RowBlock.from_bytes, (b"".join(self.parts()),)


def columns_to_bytes(columns: pa.Table | None) -> bytes:
    """Returns columns of records as bytes, b"" if there are none."""
    if columns is None:
        return b""
    from beam_pipeline.sources.record_columns import table_to_bytes

    return table_to_bytes(columns)


def columns_from_bytes(data: np.ndarray) -> pa.Table:
    """Returns the columns of records whose bytes `columns_to_bytes` returned, as a view."""
    from beam_pipeline.sources.record_columns import table_from_bytes

    return table_from_bytes(data)


def rows_checksum(ids: np.ndarray, lengths: np.ndarray) -> int:
    """Returns a checksum of a set of rows that does not depend on the rows' order.

    It is the sum of the rows' hashes mod 2**64, so the checksums of parts add up to the checksum of the whole. The hash
    of a row is a multiply-add hash (Dietzfelbinger et al., 1997) of its ids and its length, finalized by SplitMix64.

    >>> ids, lengths = np.array([[5, 6], [7, 0]]), np.array([2, 1])
    >>> total = rows_checksum(ids, lengths)
    >>> total == rows_checksum(ids[::-1], lengths[::-1])
    True
    >>> total == (rows_checksum(ids[:1], lengths[:1]) + rows_checksum(ids[1:], lengths[1:])) % 2**64
    True

    Args:
        ids: Integers [rows, max_length].
        lengths: Integers [rows].
    """
    multipliers = mix64(np.arange(ids.shape[1], dtype=np.uint64)) | np.uint64(1)
    hashes = mix64(hash_rows(ids, multipliers) + (np.asarray(lengths, np.uint64) << np.uint64(40)))
    return int(hashes.sum(dtype=np.uint64))
