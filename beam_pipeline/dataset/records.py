"""Rows ↔ `tf.Example` records in TFRecord framing, many rows per call and without TensorFlow.

The bytes of a record equal `tf.train.Example(...).SerializeToString(deterministic=True)`. The encoder takes each
value's varint from a table, all of a block at once. Everything else in a record depends only on sizes and is cached,
with its checksum. `benchmarks/records.py` compares this with tfx_bsl's C++, which also needs int64 copies of all
features, eight times the size of a block.

Formats: https://protobuf.dev/programming-guides/encoding, tensorflow/core/example/example.proto, and for the framing
tensorflow/core/lib/io/record_writer.h: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise
from typing import BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import segments_and_positions

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")

_DECODED_BYTES = 16 << 20
_CACHED_HEADS = 1 << 12  # per kind of head, of a few bytes each
_CACHED_ROW_HEADS = 1 << 10  # of `max_length` bytes each, so those of long rows are not cached
_LONGEST_CACHED = 1 << 12


class RecordError(ValueError):
    """A shard is malformed. The message gives the place."""


def feature_names(*, attention_mask: bool, segment_ids: bool, position_ids: bool) -> tuple[str, ...]:
    """Returns the names of a record's features, sorted as they are serialized."""
    optional = {"attention_mask": attention_mask, "position_ids": position_ids, "segment_ids": segment_ids}
    return tuple(sorted(["input_ids", *(name for name, wanted in optional.items() if wanted)]))


class ExampleEncoder:
    """Encodes blocks of rows as framed `tf.Example` records.

    Args:
        max_length: The number of values in each feature.
        max_value: The largest value that occurs (an id, a segment or a position), below 2**21.
        features: Names, as `feature_names` returns them.
    """

    def __init__(self, *, max_length: int, max_value: int, features: tuple[str, ...]):
        if not 0 <= max_value < 2**21:
            raise ValueError(f"values up to {max_value} do not fit into three varint bytes (at most 2097151)")
        self._max_length = max_length
        self._features = features
        values = np.arange(max_value + 1, dtype=np.uint32)
        sizes = 1 + (values >= 2**7).astype(np.int64) + (values >= 2**14)
        # Four bytes per value, little-endian: the varint's bytes first, the rest unused.
        varints = (values & 0x7F) | ((values >> 7 & 0x7F) << 8) | ((values >> 14) << 16)
        varints |= np.where(sizes > 1, 0x80, 0).astype(np.uint32) | np.where(sizes > 2, 0x8000, 0).astype(
            np.uint32
        )
        used = np.arange(4) < sizes[:, None]
        self._varints = _binary_array(
            varints.astype("<u4").view(np.uint8).reshape(-1, 4)[used], np.append(0, np.cumsum(sizes))
        )
        self._heads = lru_cache(_CACHED_ROW_HEADS if max_length <= _LONGEST_CACHED else 0)(self._row_heads)

    def encode(self, block: RowBlock) -> bytes:
        """Encodes a block's rows as TFRecord frames, in the block's order."""
        derived: dict[str, np.ndarray] = {"input_ids": block.ids}
        if "segment_ids" in self._features or "position_ids" in self._features:
            derived["segment_ids"], derived["position_ids"] = segments_and_positions(block)
        columns = [self._packed(derived[name]) for name in self._features if name != "attention_mask"]
        parts: list[bytes] = []
        for length, first, *others in zip(block.lengths.tolist(), *columns, strict=True):
            head, other_heads, crc = self._heads(length, len(first), *map(len, others))
            crc = google_crc32c.extend(crc, first)
            parts += (head, first)
            for pair in zip(other_heads, others, strict=True):
                crc = google_crc32c.extend(google_crc32c.extend(crc, pair[0]), pair[1])
                parts += pair
            parts.append(_CRC.pack(_masked(crc)))
        return b"".join(parts)

    def _row_heads(self, length: int, *sizes: int) -> tuple[bytes, list[bytes], int]:
        """Returns all of a frame that does not depend on the row's values.

        Args:
            length: The number of tokens in the row, which determines its attention_mask.
            sizes: The sizes of the other features' packed varints.

        Returns:
            What precedes the varints of the first feature and of each other one, and the CRC-32C of the first of these
            without the frame's head.
        """
        names = [name for name in self._features if name != "attention_mask"]
        first, *others = (_entry_head(name, size) for name, size in zip(names, sizes, strict=True))
        if "attention_mask" in self._features:  # the first of the features
            mask = b"\x01" * length + b"\x00" * (self._max_length - length)
            first = _entry_head("attention_mask", self._max_length) + mask + first
        rest = sum(map(len, others)) + sum(sizes)
        first = _tagged(0x0A, len(first) + rest) + first
        return _frame_head(len(first) + rest) + first, others, google_crc32c.value(first)

    def _packed(self, values: np.ndarray) -> Iterator[bytes]:
        """Yields the varints of each row of `values`."""
        indices = np.ascontiguousarray(values).reshape(-1)
        # Arrow's `take` concatenates the varints, which is faster than selecting their bytes with NumPy.
        taken = self._varints.take(
            pa.Array.from_buffers(
                pa.from_numpy_dtype(indices.dtype), len(indices), [None, pa.py_buffer(indices)]
            )
        )
        _, offsets, data = taken.buffers()
        varints = data.to_pybytes() if data else b""
        ends = np.frombuffer(offsets, np.int64)[:: values.shape[1]].tolist()
        for first, end in pairwise(ends):
            yield varints[first:end]


def _binary_array(data: np.ndarray, offsets: np.ndarray) -> pa.Array:
    """Returns an Arrow array of byte strings: the slices of `data`, uint8, between the int64 `offsets`."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=_CACHED_HEADS)
def _tagged(tag: int, length: int) -> bytes:
    """Returns the head of a length-delimited protobuf field."""
    return bytes([tag]) + _varint(length)


@lru_cache(maxsize=_CACHED_HEADS)
def _entry_head(name: str, size: int) -> bytes:
    """Returns the bytes of a feature's map entry that precede its `size` bytes of packed varints."""
    packed = _tagged(0x0A, size)  # Int64List.value
    int64_list = _tagged(0x1A, len(packed) + size) + packed  # Feature.int64_list
    feature = _tagged(0x12, len(int64_list) + size) + int64_list  # the entry's value
    key = _tagged(0x0A, len(name)) + name.encode()
    return _tagged(0x0A, len(key) + len(feature) + size) + key + feature  # Features.feature


@lru_cache(maxsize=_CACHED_HEADS)
def _frame_head(size: int) -> bytes:
    length = _LENGTH.pack(size)
    return length + _CRC.pack(_masked_crc(length))


def _masked_crc(data: bytes) -> int:
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_frames(file: BinaryIO, path: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, and checks every checksum.

    Args:
        file: At its start.
        path: Of the file, for error messages.
        max_bytes: The largest possible size of a record. A larger one is not read.

    Raises:
        RecordError: If a checksum or a length is wrong. The message gives `path`, the record and its byte offset.
    """
    record = offset = 0
    while head := file.read(12):
        place = f"{path}: record {record} at byte {offset}"
        if len(head) < 12:
            raise RecordError(f"{place}: the file ends within the record's length")
        if _CRC.unpack_from(head, 8)[0] != _masked_crc(head[:8]):
            raise RecordError(f"{place}: the checksum of the record's length is wrong")
        size = _LENGTH.unpack_from(head)[0]
        if max_bytes is not None and size > max_bytes:
            raise RecordError(f"{place}: the record has {size} bytes; the maximum is {max_bytes}")
        data = file.read(size + 4)
        if len(data) < size + 4:
            raise RecordError(f"{place}: the file ends within the record")
        data, crc = data[:size], data[size:]
        if _CRC.unpack(crc)[0] != _masked_crc(data):
            raise RecordError(f"{place}: the checksum of the record's data is wrong")
        yield data
        record, offset = record + 1, offset + 16 + size


def max_record_bytes(max_length: int, features: tuple[str, ...]) -> int:
    """Returns an upper bound of a record's size: varints of up to 10 bytes, and the heads of each feature."""
    return sum(10 * max_length + len(name) + 100 for name in features)


def decode_frames(
    frames: Iterator[bytes], *, max_length: int, features: tuple[str, ...]
) -> Iterator[dict[str, np.ndarray]]:
    """Yields `decode_examples` of batches of records, each decoded to about 16 MiB.

    Raises:
        RecordError: As `decode_examples` does. The record's number counts from the first one of its batch.
    """
    count = max(1, _DECODED_BYTES // (8 * max_length * max(1, len(features))))
    while batch := list(islice(frames, count)):
        yield decode_examples(batch, max_length=max_length, features=features)


def decode_examples(
    records: list[bytes], *, max_length: int, features: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Decodes serialized `tf.Example`s.

    Returns:
        int64 [records, max_length] by feature name.

    Raises:
        RecordError: If a record lacks a feature, has another one, or has one of the wrong length or type.
    """
    from tfx_bsl.coders import example_coder

    if not records:
        return {name: np.empty((0, max_length), np.int64) for name in features}
    batch = example_coder.ExamplesToRecordBatchDecoder().DecodeBatch(records)
    names = sorted(batch.schema.names)
    if names != sorted(features):
        raise RecordError(f"the records' features are {names}, not {sorted(features)}")
    columns = {}
    for name in features:
        column = batch.column(batch.schema.names.index(name))
        if pa.types.is_null(column.type):  # in all records
            raise RecordError(f"record 0: {name} has no values, not {max_length}")
        # As DLPack, since other conversions of Arrow's to NumPy import pandas.
        lengths = np.diff(np.from_dlpack(column.offsets))
        if (lengths != max_length).any():
            bad = int(np.flatnonzero(lengths != max_length)[0])
            raise RecordError(f"record {bad}: {name} has {lengths[bad]} values, not {max_length}")
        values = column.flatten()
        if values.type != pa.int64():
            raise RecordError(f"{name} holds {values.type} values, not int64")
        columns[name] = np.from_dlpack(values).reshape(-1, max_length)
    return columns
