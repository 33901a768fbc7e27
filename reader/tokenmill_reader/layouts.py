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
_MAX_SIZE_DIFFERENCE = 1 << 12  # bytes by which the sizes of records with templates may differ


@dataclass(frozen=True)
class Head:
    """The bytes of a feature before its varints."""

    name: str
    fixed: np.ndarray
    """Columns of the tags and the name, int64[fixed]."""
    expected: np.ndarray
    """The bytes in these columns, uint8[fixed]."""
    content: np.ndarray
    """All bytes of one head with this layout, uint8[size]."""
    value_bytes: int
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
            The bytes of varints after each head, int64[rows]; and whether it has the form of this one, bool[rows].
        """
        matches = (heads[:, self.fixed] == self.expected).all(axis=1)
        by_count: dict[int, list[tuple[int, int]]] = {}
        for column, count, excess in self.lengths:
            by_count.setdefault(count, []).append((column, excess))
        size = None
        for count in reversed(by_count):  # the last length is the number of bytes
            columns, excesses = zip(*by_count[count], strict=True)
            lengths, are_varints = _varints(heads[:, np.array(columns)[:, None] + np.arange(count)])
            size = lengths[:, -1] if size is None else size
            matches &= are_varints.all(axis=1) & (lengths == size[:, None] + np.array(excesses)).all(axis=1)
        return size, matches


@dataclass(frozen=True)
class RecordLayout:
    """One layout of records."""

    outer_bytes: int
    """Bytes of the varint with the length of all features."""
    heads: tuple[Head, ...]

    @cached_property
    def templates(self) -> Templates:
        return Templates(self)

    @property
    def key(self) -> tuple:
        """Equal for equal layouts."""
        return self.outer_bytes, tuple((head.name, head.lengths) for head in self.heads)

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
        matches = data[base] == _TAG_2
        features_bytes, has_form = _varints(windows(data, self.outer_bytes)[base + 1])
        matches &= has_form & (features_bytes == sizes - 1 - self.outer_bytes)
        position = base + 1 + self.outer_bytes
        spans = {}
        for head in self.heads:
            matches &= position + head.size <= ends
            position = np.where(matches, position, base)
            heads = windows(data, head.size)[position]
            if (heads == head.content).all():  # e.g. in attention masks
                size = np.full(rows.size, head.value_bytes)
            else:
                size, has_form = head.match(heads)
                matches &= has_form
                size = np.where(matches, size, 0)
            spans[head.name] = (position + head.size, size)
            position = position + head.size + size
        matches &= position == ends
        return matches, spans


class Templates:
    """The heads of all records that differ from one record only in the length of one feature: one template per size.

    Comparing records with these takes a fraction of the time of `RecordLayout.match`, and most records of a dataset
    match.
    """

    def __init__(self, layout: RecordLayout) -> None:
        heads = layout.heads
        self._heads = heads
        # Token ids have the most bytes, and masks always as many.
        self._varying_index = max(
            range(len(heads)), key=lambda index: (heads[index].value_bytes, heads[index].name == "input_ids")
        )
        varying_head = heads[self._varying_index]
        features_bytes = sum(head.size + head.value_bytes for head in heads)
        prefix_bytes = 1 + layout.outer_bytes  # before the first head
        lengths = [
            (layout.outer_bytes, features_bytes),
            *((count, varying_head.value_bytes + excess) for _, count, excess in varying_head.lengths),
        ]
        lowest, highest = -_MAX_SIZE_DIFFERENCE, _MAX_SIZE_DIFFERENCE
        for count, length in lengths:  # as long as each length has as many bytes
            lowest = max(lowest, (1 << 7 * (count - 1) if count > 1 else 0) - length)
            highest = min(highest, (1 << 7 * count) - 1 - length)
        deltas = np.arange(lowest, highest + 1)
        self._smallest, self._num_sizes = prefix_bytes + features_bytes + lowest, deltas.size
        self._templates = [np.broadcast_to(head.content, (deltas.size, head.size)) for head in heads]
        self._templates[self._varying_index] = self._templates[self._varying_index].copy()
        for column, count, excess in varying_head.lengths:
            _fill(
                self._templates[self._varying_index],
                column,
                count,
                varying_head.value_bytes + excess + deltas,
            )
        prefix = np.full((deltas.size, prefix_bytes), _TAG_2, np.uint8)
        _fill(prefix, 1, layout.outer_bytes, features_bytes + deltas)
        self._templates[0] = np.concatenate([prefix, self._templates[0]], axis=1)
        self._head_offsets = (
            np.cumsum([0, *(head.size + head.value_bytes for head in heads[:-1])]) + prefix_bytes
        )
        self._head_offsets[0] = 0
        self._lowest = lowest

    def match(
        self, data: np.ndarray, stride: int, rows: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Like `RecordLayout.match`, but finds only some of the records with that layout."""
        numbers = sizes - self._smallest
        matches = (numbers >= 0) & (numbers < self._num_sizes)
        if not matches.any():
            return matches, {}
        numbers = np.where(matches, numbers, 0)
        base = rows * stride
        spans = {}
        for head, (templates, offset) in enumerate(
            zip(self._templates, self._head_offsets.tolist(), strict=True)
        ):
            start = base + offset
            if head > self._varying_index:
                start += numbers + self._lowest
            equal_bytes = windows(data, templates.shape[1])[start] == templates[numbers]
            if not equal_bytes.all():
                matches &= equal_bytes.all(axis=1)
            size = np.full(rows.size, self._heads[head].value_bytes)
            if head == self._varying_index:
                size += numbers + self._lowest
            spans[self._heads[head].name] = start + templates.shape[1], size
        return matches, spans


def _fill(columns: np.ndarray, column: int, count: int, lengths: np.ndarray) -> None:
    """Writes lengths, int64[rows], as varints of `count` bytes into uint8[rows, bytes] from column `column` on."""
    for byte in range(count):
        columns[:, column + byte] = lengths >> 7 * byte & 0x7F | (0x80 if byte < count - 1 else 0)


def _varints(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decodes varints that all have the same number of bytes.

    Args:
        columns: uint8[…, bytes].

    Returns:
        int64[…], and whether the bytes are one varint of that many bytes, bool[…].
    """
    count = columns.shape[-1]
    are_varints = (columns[..., -1] < 0x80) & (columns[..., :-1] >= 0x80).all(axis=-1)
    return ((columns & np.uint8(0x7F)).astype(np.int64) << 7 * np.arange(count)).sum(axis=-1), are_varints


def learn_layout(record: bytes) -> RecordLayout | None:
    """Returns the layout of a record; None if it is not made of packed int64 lists with each name once."""
    try:
        size, outer_bytes = _read_length(record, 1)
        if record[0] != _TAG_2 or 1 + outer_bytes + size != len(record):
            return None
        position, heads = 1 + outer_bytes, []
        while position < len(record):
            head, value_bytes = _learn_head(record, position)
            if head.name in {other.name for other in heads}:
                return None
            heads.append(head)
            position += head.size + value_bytes
    except (_UnsupportedRecord, IndexError, UnicodeDecodeError):
        return None
    return RecordLayout(outer_bytes, tuple(heads)) if position == len(record) else None


class _UnsupportedRecord(Exception):
    """A record has no layout that is supported here."""


def _learn_head(record: bytes, start: int) -> tuple[Head, int]:
    position, lengths = start, []
    fixed: list[int] = []

    def expect(tag: int) -> int:
        """Skips a tag and the length after it, and returns the length."""
        nonlocal position
        if record[position] != tag:
            raise _UnsupportedRecord
        fixed.append(position - start)
        value, count = _read_length(record, position + 1)
        lengths.append((position + 1 - start, count, value))
        position += 1 + count
        return value

    expect(_TAG_2)
    name_size = expect(_TAG_KEY)
    column, count, _ = lengths.pop()
    fixed.extend(range(column, column + count + name_size))
    name = record[position : position + name_size].decode()
    position += name_size
    for tag in (_TAG_VALUE, _TAG_INT64_LIST, _TAG_2):
        expect(tag)
    value_bytes = lengths[-1][2]
    if position + value_bytes > len(record):
        raise _UnsupportedRecord
    # Each length must reach to the end of the varints; they differ by the bytes of the heads between.
    for column, count, value in lengths:
        if start + column + count + value != position + value_bytes:
            raise _UnsupportedRecord
    head = Head(
        name=name,
        fixed=np.array(fixed),
        expected=np.frombuffer(record, np.uint8)[start + np.array(fixed)],
        content=np.frombuffer(record, np.uint8)[start:position],
        value_bytes=value_bytes,
        lengths=tuple((column, count, value - value_bytes) for column, count, value in lengths),
        size=position - start,
    )
    return head, value_bytes


def _read_length(record: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_LONGEST_LENGTH):
        byte = record[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, count + 1
    raise _UnsupportedRecord
