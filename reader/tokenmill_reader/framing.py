"""The framing of TFRecord files: length (uint64), masked CRC-32C of the length, data, masked CRC-32C of the data."""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import numpy as np

from tokenmill_reader.errors import REMEDY, DatasetError

HEAD_BYTES, TAIL_BYTES = 12, 4
_LENGTH_BYTES = 8
_HEAD = struct.Struct("<QI")
_MAX_CACHED_HEADS = 1 << 16
_GZIP = b"\x1f\x8b"


class Frames(NamedTuple):
    """Records with their framing, in a buffer."""

    data: np.ndarray
    """uint8[bytes]."""
    starts: np.ndarray
    """The first byte of each frame, int64[records]."""
    ends: np.ndarray
    """The end of each frame, int64[records]."""

    def find_wrong_length(self) -> int | None:
        """Returns the index of the first frame whose length is not the one in its head; None if all are right."""
        # From a frame's start, there are always the bytes of its length.
        lengths = windows(self.data, _LENGTH_BYTES)[self.starts].view("<i8")[:, 0]
        wrong_frames = (lengths != self.ends - self.starts - (HEAD_BYTES + TAIL_BYTES)).nonzero()[0]
        return int(wrong_frames[0]) if wrong_frames.size else None

    def find_wrong_checksum(self, indices: np.ndarray) -> int | None:
        """Returns the first of these indices of frames with a wrong checksum of the data; None if all are right."""
        data_starts, data_ends = self.starts[indices] + HEAD_BYTES, self.ends[indices] - TAIL_BYTES
        spans = zip(data_starts.tolist(), data_ends.tolist(), strict=True)
        crcs = np.fromiter((google_crc32c.value(self.data[start:end]) for start, end in spans), np.uint32)
        stored = windows(self.data, TAIL_BYTES)[data_ends].view("<u4")[:, 0]
        wrong_frames = (_masked(crcs) != stored).nonzero()[0]
        return int(indices[wrong_frames[0]]) if wrong_frames.size else None


def windows(data: np.ndarray, width: int) -> np.ndarray:
    """Returns all runs of `width` bytes of a contiguous uint8[n], as a view: uint8[n - width + 1, width]."""
    # Much faster than as_strided.
    return np.ndarray((max(0, data.size - width + 1), width), np.uint8, data, 0, (1, 1))


def masked_crc(data: bytes | np.ndarray) -> int:
    """Returns the checksum of the framing: a masked CRC-32C."""
    return _masked(google_crc32c.value(data))


def _masked(crc: int | np.ndarray) -> int | np.ndarray:
    """Masks CRC-32Cs, an int or uint32[n], so that a checksum of data that contains checksums stays effective."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def parse_offsets(content: np.ndarray, *, crc: int, records: int, size: int) -> np.ndarray | None:
    """Parses the offsets of a shard (docs/dataset-format.md).

    Args:
        content: The content of the file with the offsets, uint8[bytes].
        crc: The CRC-32C that it should have.
        records: The number of records in the shard.
        size: The bytes of the shard.

    Returns:
        The offsets, as `index_frames` returns them; None if the content is damaged.
    """
    if content.size != 8 * (records + 1) or google_crc32c.value(content) != crc:
        return None
    offsets = content.view("<i8").astype(np.int64)  # a copy: the file may shrink while it is mapped
    if offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) < HEAD_BYTES + TAIL_BYTES).any():
        return None
    return offsets


def index_frames(data: memoryview, records: int, path: str) -> np.ndarray:
    """Finds the records of a file, and checks the checksums of their lengths, but not those of their data.

    Args:
        data: The whole file.
        records: The number of records that it should have.
        path: The file's path, for error messages.

    Returns:
        The offset of each record's frame, and the size of the file: int64[records + 1].

    Raises:
        DatasetError: If the framing is damaged, or the number of records is wrong.
    """
    offsets = np.empty(records + 1, np.int64)
    end, offset, record = len(data), 0, 0
    sizes: dict[bytes, int] = {}  # frames by their heads; most occur many times
    while offset < end:
        head = bytes(data[offset : offset + HEAD_BYTES])
        size = sizes.get(head)
        if size is None:
            size = _frame_size(head, f"{path}: record {record} at byte {offset}")
            if len(sizes) < _MAX_CACHED_HEADS:
                sizes[head] = size
        if size > end - offset:
            raise DatasetError(
                f"{path}: record {record} at byte {offset}: the file ends within the record; {REMEDY}"
            )
        if record == records:
            raise DatasetError(
                f"{path}: has more than the {records} records that its name or the manifest specifies; {REMEDY}"
            )
        offsets[record] = offset
        record += 1
        offset += size
    if record != records:
        raise DatasetError(
            f"{path}: has {record} records, but its name or the manifest specifies {records}; {REMEDY}"
        )
    offsets[records] = end
    return offsets


def _frame_size(head: bytes, place: str) -> int:
    if len(head) < HEAD_BYTES:
        raise DatasetError(f"{place}: the file ends within the record's length; {REMEDY}")
    size, crc = _HEAD.unpack(head)
    if crc != masked_crc(head[:8]):
        if head.startswith(_GZIP):
            raise DatasetError(
                f"{place}: compressed by gzip, which no reader of datasets supports; decompress the file"
            )
        raise DatasetError(f"{place}: the checksum of the record's length is wrong; {REMEDY}")
    return HEAD_BYTES + size + TAIL_BYTES
