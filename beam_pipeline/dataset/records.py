"""Decodes `tf.Example` records in TFRecord framing, many per call and without TensorFlow; `encoders.py` encodes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")

_DECODED_BYTES = 16 << 20


class RecordError(ValueError):
    """A shard is malformed. The message gives the place."""


def feature_names(*, attention_mask: bool, segment_ids: bool, position_ids: bool) -> tuple[str, ...]:
    """Returns the names of a record's features, sorted as they are serialized."""
    optional = {"attention_mask": attention_mask, "position_ids": position_ids, "segment_ids": segment_ids}
    return tuple(sorted(["input_ids", *(name for name, wanted in optional.items() if wanted)]))


def masked_crc(data: bytes) -> int:
    """Returns the checksum of the framing: a CRC-32C, masked as below."""
    return masked(google_crc32c.value(data))


def masked(crc: int) -> int:
    """Masks a CRC-32C, so that a checksum of data that contains checksums stays effective."""
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
        if CRC.unpack_from(head, 8)[0] != masked_crc(head[:8]):
            raise RecordError(f"{place}: the checksum of the record's length is wrong")
        size = LENGTH.unpack_from(head)[0]
        if max_bytes is not None and size > max_bytes:
            raise RecordError(f"{place}: the record has {size} bytes; the maximum is {max_bytes}")
        data = file.read(size + 4)
        if len(data) < size + 4:
            raise RecordError(f"{place}: the file ends within the record")
        data, crc = data[:size], data[size:]
        if CRC.unpack(crc)[0] != masked_crc(data):
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
