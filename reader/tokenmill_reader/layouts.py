"""The usual byte layouts of serialized `tf.train.Example`s, to find the features of many records at once.

A record of packed int64 lists consists of a few heads of tags, names and lengths, and the varints of each feature. Each
length is a varint. In a layout, the names, their order and the number of bytes of each length are fixed, so the records
of one data set have a handful of layouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenmill_reader.framing import windows

_TAG_2, _TAG_KEY, _TAG_VALUE, _TAG_INT64_LIST = (
    0x0A,
    0x0A,
    0x12,
    0x1A,
)  # length-delimited fields 1, 1, 2 and 3
_LONGEST_LENGTH = 4  # bytes, so lengths are below 2**28
_REACH = 1 << 12  # bytes by which the sizes of records with templates may differ


@dataclass(frozen=True)
class Head:
    """The bytes of a feature before its varints."""

    name: str
    fixed: np.ndarray
    """Columns of the tags and the name, int64[fixed]."""
    expected: np.ndarray
    """The bytes in these columns, uint8[fixed]."""
    whole: np.ndarray
    """All bytes of a head with this layout, uint8[size]."""
    values: int
    """Bytes of varints after that head."""
    lengths: tuple[tuple[int, int, int], ...]
    """First column, bytes, and excess over the length of the varints, of each length. The last is that length."""
    size: int
    """Bytes of the head."""

    def match(self, heads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compares bytes with this head.

        Args:
            heads: uint8[rows, size].

        Returns:
            The bytes of varints after each head, int64[rows]; and whether it is like this one, bool[rows].
        """
        alike = (heads[:, self.fixed] == self.expected).all(axis=1)
        by_count: dict[int, list[tuple[int, int]]] = {}
        for first, count, excess in self.lengths:
            by_count.setdefault(count, []).append((first, excess))
        size = None
        for count in reversed(by_count):  # the last length is the number of bytes
            firsts, excesses = zip(*by_count[count], strict=True)
            lengths, good = _varints(heads[:, np.array(firsts)[:, None] + np.arange(count)])
            size = lengths[:, -1] if size is None else size
            alike &= good.all(axis=1) & (lengths == size[:, None] + np.array(excesses)).all(axis=1)
        return size, alike


@dataclass(frozen=True)
class Layout:
    """One layout of records."""

    outer: int
    """Bytes of the length of all features."""
    heads: tuple[Head, ...]

    @cached_property
    def templates(self) -> Templates:
        return Templates(self)

    @property
    def key(self) -> tuple:
        """Equal for equal layouts."""
        return self.outer, tuple((head.name, head.lengths) for head in self.heads)

    def match(
        self, data: np.ndarray, stride: int, rows: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Finds the features of records.

        Args:
            data: uint8[n], in which record r begins at r · stride. There are `stride` bytes after the last record.
            stride: Bytes from one record to the next.
            rows: Indices of the records, int64[rows].
            sizes: Their bytes, int64[rows].

        Returns:
            bool[rows], whether the record has this layout; and for each feature, the first byte of its varints in
            `data` and their number of bytes, int64[rows] each. The latter are valid for matching records only.
        """
        base = rows * stride
        ends = base + sizes
        good = data[base] == _TAG_2
        outer, alike = _varints(windows(data, self.outer)[base + 1])
        good &= alike & (outer == sizes - 1 - self.outer)
        position = base + 1 + self.outer
        found = {}
        for head in self.heads:
            good &= position + head.size <= ends
            position = np.where(good, position, base)
            found_heads = windows(data, head.size)[position]
            if (found_heads == head.whole).all():  # as of attention masks
                size = np.full(rows.size, head.values)
            else:
                size, alike = head.match(found_heads)
                good &= alike
                size = np.where(good, size, 0)
            found[head.name] = (position + head.size, size)
            position = position + head.size + size
        good &= position == ends
        return good, found


class Templates:
    """The heads of all records that differ from one record only in the length of one feature: one template per size.

    Comparing records with these takes a fraction of the time of `Layout.match`, and most records of a dataset match.
    """

    def __init__(self, layout: Layout) -> None:
        heads = layout.heads
        self._heads = heads
        # Token ids have the most bytes, and masks always as many.
        self._varying = max(range(len(heads)), key=lambda h: (heads[h].values, heads[h].name == "input_ids"))
        varying = heads[self._varying]
        whole = sum(head.size + head.values for head in heads)
        before = 1 + layout.outer  # of the first head
        lengths = [
            (layout.outer, whole),
            *((count, varying.values + excess) for _, count, excess in varying.lengths),
        ]
        lowest, highest = -_REACH, _REACH
        for count, length in lengths:  # as long as each length has as many bytes
            lowest = max(lowest, (1 << 7 * (count - 1) if count > 1 else 0) - length)
            highest = min(highest, (1 << 7 * count) - 1 - length)
        deltas = np.arange(lowest, highest + 1)
        self._smallest, self._count = before + whole + lowest, deltas.size
        self._expected = [np.broadcast_to(head.whole, (deltas.size, head.size)) for head in heads]
        self._expected[self._varying] = self._expected[self._varying].copy()
        for first, count, excess in varying.lengths:
            _fill(self._expected[self._varying], first, count, varying.values + excess + deltas)
        outer = np.full((deltas.size, before), _TAG_2, np.uint8)
        _fill(outer, 1, layout.outer, whole + deltas)
        self._expected[0] = np.concatenate([outer, self._expected[0]], axis=1)
        self._places = np.cumsum([0, *(head.size + head.values for head in heads[:-1])]) + before
        self._places[0] = 0
        self._lowest = lowest

    def match(
        self, data: np.ndarray, stride: int, rows: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Does what `Layout.match` does, for some of the records with that layout."""
        numbers = sizes - self._smallest
        good = (numbers >= 0) & (numbers < self._count)
        if not good.any():
            return good, {}
        numbers = np.where(good, numbers, 0)
        base = rows * stride
        found = {}
        for head, (expected, place) in enumerate(zip(self._expected, self._places.tolist(), strict=True)):
            start = base + place
            if head > self._varying:
                start += numbers + self._lowest
            alike = windows(data, expected.shape[1])[start] == expected[numbers]
            if not alike.all():
                good &= alike.all(axis=1)
            size = np.full(rows.size, self._heads[head].values)
            if head == self._varying:
                size += numbers + self._lowest
            found[self._heads[head].name] = start + expected.shape[1], size
        return good, found


def _fill(columns: np.ndarray, first: int, count: int, lengths: np.ndarray) -> None:
    """Writes lengths, int64[rows], as varints of `count` bytes into uint8[rows, bytes] from column `first` on."""
    for byte in range(count):
        columns[:, first + byte] = lengths >> 7 * byte & 0x7F | (0x80 if byte < count - 1 else 0)


def _varints(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decodes varints of a given number of bytes.

    Args:
        columns: uint8[…, bytes].

    Returns:
        int64[…], and whether the bytes are one varint of that many bytes, bool[…].
    """
    count = columns.shape[-1]
    good = (columns[..., -1] < 0x80) & (columns[..., :-1] >= 0x80).all(axis=-1)
    return ((columns & np.uint8(0x7F)).astype(np.int64) << 7 * np.arange(count)).sum(axis=-1), good


def learn(record: bytes) -> Layout | None:
    """Returns the layout of a record; None if it is not made of packed int64 lists with each name once."""
    try:
        size, outer = _read_length(record, 1)
        if record[0] != _TAG_2 or 1 + outer + size != len(record):
            return None
        position, heads = 1 + outer, []
        while position < len(record):
            head, values = _learn_head(record, position)
            if head.name in {other.name for other in heads}:
                return None
            heads.append(head)
            position += head.size + values
    except (_Unusual, IndexError, UnicodeDecodeError):
        return None
    return Layout(outer, tuple(heads)) if position == len(record) else None


class _Unusual(Exception):
    """A record has no layout that is supported here."""


def _learn_head(record: bytes, start: int) -> tuple[Head, int]:
    position, lengths = start, []
    fixed: list[int] = []

    def expect(tag: int) -> int:
        """Passes a tag and the length after it, and returns the length."""
        nonlocal position
        if record[position] != tag:
            raise _Unusual
        fixed.append(position - start)
        value, count = _read_length(record, position + 1)
        lengths.append((position + 1 - start, count, value))
        position += 1 + count
        return value

    expect(_TAG_2)
    name_size = expect(_TAG_KEY)
    first, count, _ = lengths.pop()
    fixed.extend(range(first, first + count + name_size))
    name = record[position : position + name_size].decode()
    position += name_size
    for tag in (_TAG_VALUE, _TAG_INT64_LIST, _TAG_2):
        expect(tag)
    values = lengths[-1][2]
    if position + values > len(record):
        raise _Unusual
    # Each length must reach to the end of the varints; they differ by the bytes of the heads between.
    for first, count, value in lengths:
        if start + first + count + value != position + values:
            raise _Unusual
    head = Head(
        name=name,
        fixed=np.array(fixed),
        expected=np.frombuffer(record, np.uint8)[start + np.array(fixed)],
        whole=np.frombuffer(record, np.uint8)[start:position],
        values=values,
        lengths=tuple((first, count, value - values) for first, count, value in lengths),
        size=position - start,
    )
    return head, values


def _read_length(record: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_LENGTH):
        byte = record[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, count + 1
    raise _Unusual
