"""Decodes serialized `tf.train.Example`s (tensorflow/core/example/example.proto) without protobuf.

Records of a usual layout are decoded together, others one by one: features in any order, packed and unpacked lists,
and unknown fields and features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from tokenmill_reader.compiled import CompiledDecoder, library
from tokenmill_reader.errors import RecordFault
from tokenmill_reader.framing import windows
from tokenmill_reader.layouts import RecordLayout, learn_layout
from tokenmill_reader.varints import RowDecoder, decode_varints

LARGE_RATIO = 4  # a record of this many times the median size is decoded alone
_MAX_LAYOUTS = 24
_MAX_NAMES = 8  # in a message
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class ExampleDecoder:
    """Decodes records with int64 features of equally many values.

    It learns the layouts that occur. An instance must not be used by two threads at a time.
    """

    def __init__(self, *, max_length: int, features: Sequence[str], exclusive: bool = False) -> None:
        """
        Args:
            max_length: Values in each feature.
            features: The names of the features to decode.
            exclusive: Whether a record with other features is a fault. Otherwise other features are ignored.
        """
        self._exclusive = exclusive
        self._max_length = max_length
        self._features = tuple(features)
        self._rows = RowDecoder(max_length)
        compiled = library()
        self._compiled = compiled and CompiledDecoder(
            compiled, max_length=max_length, features=self._features, exclusive=exclusive
        )
        self._layouts: list[RecordLayout] = []

    @property
    def is_compiled(self) -> bool:
        """Whether `decode_in_place` can decode records."""
        return self._compiled is not None

    def decode_in_place(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        rows: np.ndarray,
        out: Mapping[str, np.ndarray],
    ) -> bool:
        """Decodes records by compiled code, without copying them. See `CompiledDecoder.decode`."""
        return self._compiled is not None and self._compiled.decode(data, starts, ends, rows, out)

    def decode(self, data: np.ndarray, stride: int, sizes: np.ndarray, out: dict[str, np.ndarray]) -> None:
        """Decodes records.

        Args:
            data: uint8[(rows + 1) · stride]; record r begins at r · stride.
            stride: Bytes from one record to the next.
            sizes: Bytes of each record, int64[rows].
            out: int32[rows, max_length] by feature, which receive the values.

        Raises:
            RecordFault: If a record is malformed, lacks a feature, has another number of values in one, or values that
                are not int32.
        """
        remaining = np.arange(len(sizes))
        if self.decode_in_place(data, remaining * stride, remaining * stride + sizes, remaining, out):
            return
        for number, layout in enumerate(self._layouts):
            if not remaining.size:
                return
            num_before = remaining.size
            remaining = self._decode_layout(layout, data, stride, remaining, sizes, out)
            if number and remaining.size < num_before // 2:  # the most frequent layout is tried first
                self._layouts = [layout, *(other for other in self._layouts if other is not layout)]
        while remaining.size:
            layout = self._new_layout(data[remaining[0] * stride :][: sizes[remaining[0]]].tobytes())
            if layout is not None:
                self._layouts.append(layout)
                remaining = self._decode_layout(layout, data, stride, remaining, sizes, out)
                continue
            self.decode_record(
                data[remaining[0] * stride :][: sizes[remaining[0]]].tobytes(),
                {name: out[name][remaining[0]] for name in self._features},
                int(remaining[0]),
            )
            remaining = remaining[1:]

    def decode_records(self, records: Sequence[bytes], out: dict[str, np.ndarray]) -> None:
        """Decodes records of any sizes, as `decode` does."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        stride = int(sizes.max(initial=0))
        if stride > LARGE_RATIO * np.median(sizes):
            for row, record in enumerate(records):
                self.decode_record(record, {name: out[name][row] for name in self._features}, row)
            return
        padded = b"".join([*(record.ljust(stride, b"\0") for record in records), bytes(stride)])
        self.decode(np.frombuffer(padded, np.uint8), stride, sizes, out)

    def _new_layout(self, record: bytes) -> RecordLayout | None:
        """Returns the layout of a record; None if it is known already or does not help."""
        if len(self._layouts) == _MAX_LAYOUTS:
            return None
        layout = learn_layout(record)
        if layout is None or not self._has_features({head.name for head in layout.heads}):
            return None
        return None if layout.key in {other.key for other in self._layouts} else layout

    def _has_features(self, names: Set[str]) -> bool:
        return names == set(self._features) if self._exclusive else names >= set(self._features)

    def _decode_layout(
        self,
        layout: RecordLayout,
        data: np.ndarray,
        stride: int,
        rows: np.ndarray,
        sizes: np.ndarray,
        out: dict[str, np.ndarray],
    ) -> np.ndarray:
        """Decodes those of the records `rows` that have a layout. Returns the others."""
        for match in (layout.templates.match, layout.match):
            if rows.size:
                matches, spans = match(data, stride, rows, sizes[rows])
                self._decode_spans(data, rows, matches, spans, out)
                rows = rows[~matches]
        return rows

    def _decode_spans(
        self,
        data: np.ndarray,
        rows: np.ndarray,
        matches: np.ndarray,
        spans: dict[str, tuple[np.ndarray, np.ndarray]],
        out: dict[str, np.ndarray],
    ) -> None:
        """Decodes the features at these spans. Clears the entries of `matches` for records that cannot be decoded.

        Args:
            data: The bytes of the records.
            rows: Their indices in `out`, int64[rows].
            matches: Which records are decoded, bool[rows].
            spans: The first byte of each feature's varints, and their number of bytes, int64[rows] each.
            out: int32[rows, max_length] by feature.
        """
        for name in self._features:
            if not matches.any():
                return
            all_match = bool(matches.all())
            starts, lengths = (
                spans[name] if all_match else (values_of_rows[matches] for values_of_rows in spans[name])
            )
            matching_rows = rows if all_match else rows[matches]
            block = windows(data, int(lengths.max()) + 1)[starts - 1]
            contiguous = matching_rows.size == len(out[name])
            values = out[name] if contiguous else np.empty((matching_rows.size, self._max_length), np.int32)
            decoded = self._rows.decode(block, lengths, values)
            if not contiguous:
                out[name][matching_rows] = values
            if not decoded.all():
                matches[matches.nonzero()[0][~decoded]] = False

    def decode_record(self, record: bytes, out: dict[str, np.ndarray], row: int = 0) -> None:
        """Decodes one record into int32[max_length] by feature. Raises RecordFault with `row`."""
        try:
            features = parse_example(record)
        except ValueError as error:
            raise RecordFault(row, f"is not a tf.train.Example: {error}") from None
        if self._exclusive and features.keys() > set(self._features):
            raise RecordFault(
                row, f"has the features {_list_names(features)}, not only {_list_names(self._features)}"
            )
        for name in self._features:
            if name not in features:
                raise RecordFault(row, f"has no {name}, only {_list_names(features)}")
            values = features[name]
            if values is None:
                raise RecordFault(row, f"has values in {name} that are not int64")
            if values.size != self._max_length:
                raise RecordFault(row, f"has {values.size} values in {name}, not {self._max_length}")
            if values.size and (int(values.min()) < -(2**31) or int(values.max()) >= 2**31):
                raise RecordFault(row, f"has values in {name} that do not fit into 32 bits")
            out[name][:] = values


def _list_names(features: Iterable[str]) -> str:
    names = sorted(features)
    shown = ", ".join(repr(name[:40]) for name in names[:_MAX_NAMES]) or "nothing"
    return shown + (f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else "")


def parse_example(record: bytes) -> dict[str, np.ndarray | None]:
    """Parses any `tf.train.Example`.

    Returns:
        int64[values] by feature; None for features of other types.

    Raises:
        ValueError: If the record is malformed.
    """
    values_by_name: dict[str, np.ndarray | None] = {}
    for field, features in _fields(memoryview(record)):
        if field != 1 or isinstance(features, int):
            continue
        for field, entry in _fields(features):
            if field != 1 or isinstance(entry, int):
                continue
            name, value = b"", []
            for field, content in _fields(entry):
                if field == 1 and not isinstance(content, int):
                    name = bytes(content)
                elif field == 2 and not isinstance(content, int):
                    value.append(content)  # the parts of a repeated message are merged
            values_by_name[name.decode(errors="backslashreplace")] = _int64_values(
                memoryview(b"".join(value))
            )
    return values_by_name


def _int64_values(feature: memoryview) -> np.ndarray | None:
    """Returns the values of a Feature, int64[values]; None if it has another type. An empty Feature has no values."""
    arrays: list[np.ndarray] | None = []
    for list_field, content in _fields(feature):
        if list_field not in (1, 2, 3) or isinstance(content, int):
            continue
        if list_field != 3:  # the last member of a oneof counts
            arrays = None
            continue
        arrays = arrays or []
        unpacked = _parse_unpacked(content)
        if unpacked is not None:
            arrays.append(unpacked)
            continue
        for field, values in _fields(content):
            if field == 1 and isinstance(values, int):
                arrays.append(np.array([values], np.uint64).view(np.int64))
            elif field == 1:
                arrays.append(decode_varints(np.frombuffer(values, np.uint8)))
    if arrays is None:
        return None
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _parse_unpacked(int64_list: memoryview) -> np.ndarray | None:
    """Returns the values of a list in which each value has a tag; None if it is not such a list."""
    if not int64_list or int64_list[0] != 1 << 3 | _VARINT:
        return None
    try:
        varints = decode_varints(np.frombuffer(int64_list, np.uint8))
    except ValueError:
        return None
    if varints.size % 2 or (varints[::2] != (1 << 3 | _VARINT)).any():
        return None
    return varints[1::2]


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yields the number of each field of a message and its content: bytes, or the number of a varint.

    Raises:
        ValueError: If the message is malformed.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = _varint(message, position)
        field, wire = tag >> 3, tag & 7
        if not 0 < field < 2**29:
            raise ValueError(f"a field has the number {field}")
        if wire == _VARINT:
            value, position = _varint(message, position)
            yield field, value
            continue
        if wire == _BYTES:
            size, position = _varint(message, position)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the wire type {wire}")
        if size > end - position:
            raise ValueError(f"a field of {size} bytes, where only {end - position} are left")
        if wire == _BYTES:
            yield field, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Returns the varint at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise ValueError("it ends within a varint")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, position
    raise ValueError("a varint has more than 64 bits")
