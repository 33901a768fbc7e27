"""Decodes protobuf's varints, many at once (https://protobuf.dev/programming-guides/encoding/#varints)."""

from __future__ import annotations

import numpy as np

_MAX_BYTES = 10  # of a 64-bit varint


def decode_varints(data: np.ndarray) -> np.ndarray:
    """Decodes consecutive varints of up to 64 bits.

    Args:
        data: uint8[bytes].

    Returns:
        int64[values].

    Raises:
        ValueError: If the last varint is incomplete, or one has more than 64 bits.
    """
    ends = np.flatnonzero(data < 0x80)
    if data.size and (not ends.size or ends[-1] != data.size - 1):
        raise ValueError("the last varint is incomplete")
    sizes = np.diff(ends, prepend=-1)
    if sizes.size and (sizes.max() > _MAX_BYTES or (data[ends[sizes == _MAX_BYTES]] > 1).any()):
        raise ValueError("a varint has more than 64 bits")
    if not ends.size:
        return np.empty(0, np.int64)
    starts = ends + 1 - sizes
    shifts = (np.arange(data.size) - np.repeat(starts, sizes)) * 7
    bits = (data & np.uint8(0x7F)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(bits, starts).view(np.int64)


class RowDecoder:
    """Decodes rows of equally many small varints (token ids, masks), with a few vector operations per byte.

    All operations work on whole blocks of bytes in buffers that are reused, since allocating them costs more than the
    operations. An instance must not be used by two threads at a time.
    """

    def __init__(self, values: int) -> None:
        """
        Args:
            values: Varints per row.
        """
        self._values = values
        self._capacity = 0

    def decode(self, block: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Decodes the varints of each row.

        Args:
            block: uint8[rows, width], contiguous. Column 0 has the byte before the varints, which is below 0x80. The
                bytes after the varints are overwritten.
            sizes: Bytes of varints in each row, int64[rows], below `width`.
            out: int32[rows, values] for the values. The rows that cannot be decoded here are left undefined.

        Returns:
            bool[rows]: Whether the row was decoded. False if it has another number of varints, or one of more than
            three bytes; `decode_varints` handles these.
        """
        rows, width = block.shape
        if (sizes == self._values).all() and int(block[:, 1 : self._values + 1].max(initial=0)) < 0x80:
            out[:] = block[:, 1 : self._values + 1]  # one byte per varint, as in attention masks
            return np.ones(rows, bool)
        # Make the bytes after the varints 0x80, so that they end none.
        shortest = int(sizes.min()) + 1
        np.copyto(block[:, shortest:], np.uint8(0x80), where=np.arange(shortest, width) > sizes[:, None])
        self._reserve(block.size)
        data, buffers = block.reshape(-1), [buffer[: block.size] for buffer in self._bytes]
        is_end, continued, pair, low_bits, factor = buffers
        np.less(data, 0x80, out=is_end.view(bool))
        np.subtract(is_end, 1, out=continued)  # 0xFF where another byte follows, else 0
        is_end[::width] = 0
        ends = is_end.view(bool).nonzero()[0]
        is_decodable = self._find_decodable(ends, is_end.reshape(rows, width), sizes)
        np.bitwise_and(continued[1:], continued[:-1], out=pair[1:])  # 0xFF after two bytes that are continued
        pair[0] = 0
        np.bitwise_and(data, 0x7F, out=low_bits)
        # At the last byte of a varint of three bytes: the bits that 16-bit values have no place for.
        np.bitwise_and(low_bits[1:], pair[:-1], out=factor[1:])
        values = (self._values32 if int(factor[1:].max(initial=0)) > 3 else self._values16)[: block.size]
        np.bitwise_and(is_end[3:], pair[2:-1], out=factor[3:])
        np.bitwise_and(factor[3:], continued[:-3], out=factor[3:])
        if factor[3:].max(initial=0):  # a varint of four bytes, which is rare in rows of token ids
            is_decodable[np.unique((factor[3:].nonzero()[0] + 3) // width)] = False
        # The most significant bits are last: a varint is its last byte, times 128 plus the 7 bits of the byte before if
        # that one is continued, and once more for the byte before that.
        np.bitwise_and(low_bits, continued, out=low_bits)
        np.copyto(values, data)
        _append(values[1:], continued[:-1], low_bits[:-1], factor[1:])
        np.bitwise_and(low_bits[:-1], pair[1:], out=low_bits[:-1])
        _append(values[2:], pair[1:-1], low_bits[:-2], factor[2:])
        if not is_decodable.all():
            ends = ends[is_decodable[ends // width]]
        out[slice(None) if is_decodable.all() else is_decodable] = values.take(ends).reshape(-1, self._values)
        return is_decodable

    def _find_decodable(self, ends: np.ndarray, is_end: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns which rows have the right number of varints, and end with one: bool[rows]."""
        rows, width = is_end.shape
        last_bytes = np.arange(rows) * width + sizes
        if ends.size == rows * self._values and (ends[self._values - 1 :: self._values] == last_bytes).all():
            return np.ones(rows, bool)
        ends_varint = is_end.reshape(-1)[last_bytes].view(bool)
        return ends_varint & (is_end.sum(axis=1, dtype=np.int64) == self._values)

    def _reserve(self, size: int) -> None:
        if size > self._capacity:
            self._capacity = size
            self._bytes = [np.empty(size, np.uint8) for _ in range(5)]
            self._values16, self._values32 = np.empty(size, np.uint16), np.empty(size, np.uint32)


def _append(values: np.ndarray, mask: np.ndarray, low_bits: np.ndarray, buffer: np.ndarray) -> None:
    """Appends 7 bits to the values where `mask` is 0xFF, not where it is 0. There, `low_bits` must be 0."""
    np.bitwise_and(mask, 0x7F, out=buffer)
    np.add(buffer, 1, out=buffer)  # 128 or 1
    np.multiply(values, buffer, out=values)
    np.add(values, low_bits, out=values)
