"""Reads `tf.Example` records in TFRecord framing from a stream; `encoders.py` encodes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import numpy as np

from tokenmill_reader.errors import RecordFault
from tokenmill_reader.examples import ExampleDecoder
from tokenmill_reader.framing import masked_crc

LENGTH = struct.Struct("<Q")
CRC = struct.Struct("<I")

# Values of a feature that are decoded together: their bytes fit into a core's caches.
_VALUES_PER_CALL = 1 << 18


class RecordError(ValueError):
    """A shard is malformed. The message gives the place."""


def feature_names(
    *, attention_mask: bool, segment_ids: bool, position_ids: bool, loss_mask: bool = False
) -> tuple[str, ...]:
    """Returns the names of a record's features, sorted as they are serialized."""
    optional = {
        "attention_mask": attention_mask,
        "loss_mask": loss_mask,
        "position_ids": position_ids,
        "segment_ids": segment_ids,
    }
    return tuple(sorted(["input_ids", *(name for name, enabled in optional.items() if enabled)]))


def read_frames(file: BinaryIO, path: str, max_bytes: int | None = None) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, and checks every checksum.

    Args:
        file: The open file, positioned at its start.
        path: The file's path, for error messages.
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
    """Returns an upper bound of a record's size: varints of up to 10 bytes, and the headers of each feature."""
    return sum(10 * max_length + len(name) + 100 for name in features)


def decode_frames(
    frames: Iterator[bytes], *, max_length: int, features: tuple[str, ...]
) -> Iterator[dict[str, np.ndarray]]:
    """Decodes serialized `tf.Example`s.

    Yields:
        int64 [records, max_length] by feature name, of some records.

    Raises:
        RecordError: If a record lacks a feature, has another one, or has one of the wrong length or type. Its number
            counts from the first one of its batch.
    """
    decoder = ExampleDecoder(max_length=max_length, features=features, exclusive=True)
    count = max(1, _VALUES_PER_CALL // max_length)
    while batch := list(islice(frames, count)):
        columns = {name: np.empty((len(batch), max_length), np.int32) for name in features}
        try:
            decoder.decode_records(batch, columns)
        except RecordFault as fault:
            raise RecordError(f"record {fault.row} {fault.reason}") from fault
        yield {name: values.astype(np.int64) for name, values in columns.items()}
