"""Encodes rows as `tf.Example` records in TFRecord framing, many rows per call and without TensorFlow.

The bytes of a record equal `tf.train.Example(...).SerializeToString(deterministic=True)`. `benchmarks/records.py`
compares the encoders with tfx_bsl's C++, which needs int64 copies of all features, eight times the size of a block, and
serializes features in an order that changes from record to record.

Formats: https://protobuf.dev/programming-guides/encoding, tensorflow/core/example/example.proto, and for the framing
tensorflow/core/lib/io/record_writer.h: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import google_crc32c
import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.records import CRC, LENGTH, masked, masked_crc
from beam_pipeline.native import library as native
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import segments_and_positions
from beam_pipeline.support.limits import MOST_IDS

_MOST_IN_TABLE = 1 << 21  # values, which take 100 MB while the table is computed
_CACHED_HEADS = 1 << 12  # per kind of head, of a few bytes each
_CACHED_ROW_HEADS = 1 << 10  # of `max_length` bytes each, so those of long rows are not cached
_LONGEST_CACHED = 1 << 12


def make_encoder(
    *, max_length: int, max_value: int, features: tuple[str, ...]
) -> CompiledEncoder | ArrowEncoder:
    """Returns the faster one of the encoders that this installation has. Their bytes are equal.

    Args:
        max_length: The number of values in each feature.
        max_value: The largest value that occurs (an id, a segment or a position), below 2**31.
        features: Names, as `feature_names` returns them.
    """
    if not 0 <= max_value < MOST_IDS:
        raise ValueError(f"values up to {max_value} are not from 0 to {MOST_IDS - 1}")
    library = native.rows_library()
    if library is None:
        return ArrowEncoder(max_length=max_length, max_value=max_value, features=features)
    return CompiledEncoder(library, max_length=max_length, max_value=max_value, features=features)


def _columns(block: RowBlock, features: tuple[str, ...]) -> list[tuple[str, np.ndarray | None]]:
    """Returns the names and the values of the features; None for the attention mask, which follows from the lengths."""
    values: dict[str, np.ndarray | None] = {"attention_mask": None, "input_ids": block.ids}
    if not {"segment_ids", "position_ids"}.isdisjoint(features):
        values["segment_ids"], values["position_ids"] = segments_and_positions(block)
    return [(name, values[name]) for name in features]


class CompiledEncoder:
    """Encodes blocks of rows by the compiled functions."""

    def __init__(self, library: ctypes.CDLL, *, max_length: int, max_value: int, features: tuple[str, ...]):
        self._library = library
        self._max_length = max_length
        self._max_value = max_value
        self._features = features

    def encode(self, block: RowBlock) -> bytes:
        """Encodes a block's rows as TFRecord frames, in the block's order."""
        columns = _columns(block, self._features)
        return native.encode_rows(self._library, columns, block.lengths, self._max_length, self._max_value)


class ArrowEncoder:
    """Encodes blocks of rows where no compiled functions are installed.

    It takes each value's varint from a table, all of a block at once, unless the table would be too large. Everything
    else in a record depends only on sizes and is cached, with its checksum.
    """

    def __init__(self, *, max_length: int, max_value: int, features: tuple[str, ...]):
        self._max_length = max_length
        self._features = features
        self._table: pa.Array | None = None
        if max_value < _MOST_IN_TABLE:
            varints, sizes = _varints_of(np.arange(max_value + 1, dtype=np.uint32))
            self._table = _binary_array(varints, np.append(0, np.cumsum(sizes)))
        self._heads = lru_cache(_CACHED_ROW_HEADS if max_length <= _LONGEST_CACHED else 0)(self._row_heads)

    def encode(self, block: RowBlock) -> bytes:
        """Encodes a block's rows as TFRecord frames, in the block's order."""
        values = [values for _, values in _columns(block, self._features) if values is not None]
        columns = map(self._packed, values)
        parts: list[bytes] = []
        for length, first, *others in zip(block.lengths.tolist(), *columns, strict=True):
            head, other_heads, crc = self._heads(length, len(first), *map(len, others))
            crc = google_crc32c.extend(crc, first)
            parts += (head, first)
            for pair in zip(other_heads, others, strict=True):
                crc = google_crc32c.extend(google_crc32c.extend(crc, pair[0]), pair[1])
                parts += pair
            parts.append(CRC.pack(masked(crc)))
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
        if self._table is None:
            data, sizes = _varints_of(indices.astype(np.uint32, copy=False))
            varints, offsets = data.tobytes(), np.append(0, np.cumsum(sizes))
        else:
            # Arrow's `take` concatenates the varints, which is faster than selecting their bytes with NumPy.
            taken = self._table.take(
                pa.Array.from_buffers(
                    pa.from_numpy_dtype(indices.dtype), len(indices), [None, pa.py_buffer(indices)]
                )
            )
            _, buffer, data = taken.buffers()
            varints, offsets = data.to_pybytes() if data else b"", np.frombuffer(buffer, np.int64)
        for first, end in pairwise(offsets[:: values.shape[1]].tolist()):
            yield varints[first:end]


def _varints_of(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encodes uint32 values as varints: returns their bytes, uint8, and the size of each, int64 [values]."""
    shifts = np.arange(0, 35, 7)
    sizes = 1 + (values[:, None] >= 1 << shifts[1:]).sum(axis=1)
    groups = (values[:, None] >> shifts.astype(np.uint32)).astype(np.uint8)
    place = np.arange(5)
    groups = np.where(place < sizes[:, None] - 1, groups | 0x80, groups & 0x7F)
    return groups[place < sizes[:, None]], sizes


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
    length = LENGTH.pack(size)
    return length + CRC.pack(masked_crc(length))
