"""The framing of TFRecord files: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data."""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np

from tokenmill_reader.errors import REMEDY, DatasetError

HEAD_BYTES, TAIL_BYTES = 12, 4
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_KNOWN_HEADS = 1 << 16


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def index_frames(data: memoryview, records: int, path: str) -> np.ndarray:
    """Finds the records of a file, and checks the checksums of their lengths, but not those of their data.

    Args:
        data: The whole file.
        records: The number of records that it should have.
        path: For error messages.

    Returns:
        The offset of each record's frame, and the size of the file: int64[records + 1].

    Raises:
        DatasetError: If the framing is damaged, or the number of records is another.
    """
    offsets = np.empty(records + 1, np.int64)
    end, offset, found = len(data), 0, 0
    sizes: dict[bytes, int] = {}  # frames by their heads; most occur many times
    while offset < end:
        head = bytes(data[offset : offset + HEAD_BYTES])
        size = sizes.get(head)
        if size is None:
            size = _frame_size(head, f"{path}: record {found} at byte {offset}")
            if len(sizes) < _KNOWN_HEADS:
                sizes[head] = size
        if size > end - offset:
            raise DatasetError(
                f"{path}: record {found} at byte {offset}: the file ends within the record; {REMEDY}"
            )
        if found == records:
            raise DatasetError(
                f"{path}: has more than the {records} records that its name or the manifest specifies; {REMEDY}"
            )
        offsets[found] = offset
        found += 1
        offset += size
    if found != records:
        raise DatasetError(
            f"{path}: has {found} records, but its name or the manifest specifies {records}; {REMEDY}"
        )
    offsets[records] = end
    return offsets


def _frame_size(head: bytes, place: str) -> int:
    if len(head) < HEAD_BYTES:
        raise DatasetError(f"{place}: the file ends within the record's length; {REMEDY}")
    size, crc = _HEAD.unpack(head)
    if crc != _masked_crc(head[:8]):
        raise DatasetError(f"{place}: the checksum of the record's length is wrong; {REMEDY}")
    return HEAD_BYTES + size + TAIL_BYTES


def is_intact(frame: bytes) -> bool:
    """Returns whether the checksum of a frame's data is right."""
    return _CRC.unpack(frame[-TAIL_BYTES:])[0] == _masked_crc(frame[HEAD_BYTES:-TAIL_BYTES])
