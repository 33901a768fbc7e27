"""The usual byte layouts of serialized `tf.train.Example`s, to find the features of many records at once.

A record of packed int64 lists consists of a few heads of tags, names and lengths, and the varints of each feature. Each
length is a varint. In a layout, the names, their order and the number of bytes of each length are fixed, so the records
of one data set have a handful of layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill_reader.framing import windows

_TAG_2, _TAG_KEY, _TAG_VALUE, _TAG_INT64_LIST = (
    0x0A,
    0x0A,
    0x12,
    0x1A,
)  # length-delimited fields 1, 1, 2 and 3
_LONGEST_LENGTH = 4  # bytes, so lengths are below 2**28
_MAX_TEMPLATES, _LARGEST_TEMPLATE = 1 << 12, 1 << 18  # the sizes of records are below the latter


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
    """The heads of records by the records' sizes, from records that were decoded before.

    Most records of a dataset have one of a few hundred sizes, and those of one size usually have equal heads. Comparing
    them takes a fraction of the time of `Layout.match`.
    """

    def __init__(self) -> None:
        self._numbers = np.empty(0, np.int32)
        """The number of each size's template, or -1."""
        self._names: tuple[str, ...] = ()
        self._widths: tuple[int, ...] = ()
        """Bytes of each head."""
        self._count = 0

    def match(
        self, data: np.ndarray, stride: int, sizes: np.ndarray
    ) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Does what `Layout.match` does, for all records."""
        good = np.zeros(sizes.size, bool)
        if not self._count or int(sizes.max()) >= self._numbers.size:
            return good, {}
        numbers = self._numbers[sizes]
        known = numbers >= 0
        base = np.arange(sizes.size) * stride
        found = {}
        good |= known
        for head, name in enumerate(self._names):
            start = base + self._places[head][numbers]
            actual = windows(data, self._widths[head])[start]
            alike = actual == self._bytes[head][numbers]
            if not alike.all():
                good &= alike.all(axis=1)
            found[name] = start + self._widths[head], self._sizes[head][numbers]
        return good, found

    def add(
        self,
        layout: Layout,
        data: np.ndarray,
        first: np.ndarray,
        sizes: np.ndarray,
        found: dict[str, tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Adds templates of decoded records with new sizes.

        Args:
            layout: Of the records.
            data: The bytes that contain them.
            first: The first byte of each record, int64[records].
            sizes: Bytes of each record, int64[records].
            found: What `Layout.match` has found in them.
        """
        # The first head includes what is before it: the tag and the length of all features.
        names = tuple(head.name for head in layout.heads)
        widths = tuple(head.size for head in layout.heads)
        widths = (widths[0] + 1 + layout.outer, *widths[1:])
        if not self._count:
            self._names, self._widths = names, widths
            self._numbers = np.full(_LARGEST_TEMPLATE, -1, np.int32)
            self._places, self._sizes = (np.zeros((len(names), _MAX_TEMPLATES), np.int64) for _ in range(2))
            self._bytes = [np.zeros((_MAX_TEMPLATES, width), np.uint8) for width in widths]
        if (names, widths) != (self._names, self._widths):
            return
        for size, index in zip(*np.unique(sizes, return_index=True), strict=True):
            if self._count == _MAX_TEMPLATES or size >= _LARGEST_TEMPLATE or self._numbers[size] >= 0:
                continue
            for head, (name, width) in enumerate(zip(names, widths, strict=True)):
                start, values = (part[index] for part in found[name])
                self._places[head, self._count] = start - width - first[index]
                self._sizes[head, self._count] = values
                self._bytes[head][self._count] = data[start - width : start]
            self._numbers[size] = self._count
            self._count += 1


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
