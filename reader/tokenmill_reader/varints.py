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
        self._reserve(block.size)
        is_end, continued, low, pair = (buffer[: block.size] for buffer in self._bytes)
        inside = pair.reshape(rows, width).view(bool)
        small = np.int16 if width < 2**15 else np.int64  # a quarter of the bytes to compare
        np.less_equal(np.arange(width, dtype=small), sizes.astype(small)[:, None], out=inside)
        data = block.reshape(-1)
        np.multiply(data, pair, out=data)
        np.less(data, 0x80, out=is_end.view(bool))
        np.bitwise_and(is_end, pair, out=is_end)
        is_end[::width] = False
        ends = is_end.view(bool).nonzero()[0]
        complete = is_end.reshape(rows, width)[np.arange(rows), sizes].view(bool)
        good = complete & self._has_all_values(ends, is_end.reshape(rows, width))
        # From here on, `is_end` is also set after the rows' varints, where the bytes are 0.
        np.less(data, 0x80, out=is_end.view(bool))
        np.bitwise_and(data, 0x80, out=continued)
        np.bitwise_and(continued[1:], continued[:-1], out=pair[1:])
        pair[0] = 0
        has_pairs = bool(pair.max())
        if has_pairs:
            triple = continued[2:] & pair[1:-1]
            if triple.max():
                good[np.unique((np.flatnonzero(triple) + 2) // width)] = False
        if not good.all():
            ends = np.flatnonzero(
                (is_end.reshape(rows, width) & _inside_rows(sizes, width, good)).reshape(-1)
            )
        # The 7 bits of each byte that another one follows, else 0. Subtracting 1 from a boolean gives a mask.
        np.subtract(is_end, 1, out=low)
        np.bitwise_and(low, data, out=low)
        np.bitwise_and(low, 0x7F, out=low)
        # The factor of each byte that follows: 128 if this one is continued, else 1. Then the value at the last byte of
        # a varint of two bytes is byte · factor + the low bits before. Another such step gives those of three bytes.
        np.bitwise_or(continued, is_end, out=continued)
        if has_pairs:
            np.equal(pair, 0, out=is_end.view(bool))
            np.bitwise_or(pair, is_end, out=pair)
            np.subtract(is_end, 1, out=is_end)
            wide = int((data[2:] & is_end[1:-1]).max()) > 3
        else:
            wide = False
        values = (self._wide if wide else self._narrow)[: block.size]
        np.copyto(values, data)
        np.multiply(values[1:], continued[:-1], out=values[1:])
        np.add(values[1:], low[:-1], out=values[1:])
        if has_pairs:
            np.multiply(values[2:], pair[1:-1], out=values[2:])
            np.bitwise_and(is_end[1:], low[:-1], out=is_end[1:])
            np.add(values[2:], is_end[1:-1], out=values[2:])
        out[slice(None) if good.all() else good] = values.take(ends).reshape(-1, self._values)
        return good

    def _has_all_values(self, ends: np.ndarray, is_end: np.ndarray) -> np.ndarray:
        """Returns which rows have the right number of varints, bool[rows]."""
        rows, width = is_end.shape
        if ends.size == rows * self._values:
            edges = ends.reshape(rows, self._values)[:, [0, -1]] // width
            if (edges == np.arange(rows)[:, None]).all():
                return np.ones(rows, bool)
        return is_end.sum(axis=1, dtype=np.int64) == self._values

    def _reserve(self, size: int) -> None:
        if size > self._capacity:
            self._capacity = size
            self._bytes = [np.empty(size, np.uint8) for _ in range(4)]
            self._narrow, self._wide = np.empty(size, np.uint16), np.empty(size, np.uint32)


def _inside_rows(sizes: np.ndarray, width: int, good: np.ndarray) -> np.ndarray:
    """Returns which bytes belong to the varints of good rows, bool[rows, width]. Column 0 does not."""
    columns = np.arange(width)
    return (columns > 0) & (columns <= sizes[:, None]) & good[:, None]
