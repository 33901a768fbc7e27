"""The offsets of the records in TFRecord shards, in a file for each shard (docs/dataset-format.md)."""

from __future__ import annotations

import struct
from array import array

import numpy as np

from beam_pipeline.native import library as native

_LENGTH = struct.Struct("<Q")
_FRAMING_BYTES = 16
_BEYOND_ANY_FILE = 2**62  # more than any file has


def offsets_size(records: int) -> int:
    """Returns the size of that file."""
    return _LENGTH.size * (records + 1)


class OffsetFinder:
    """Finds the records in the bytes of an intact TFRecord file, which it gets in pieces."""

    def __init__(self) -> None:
        self._offsets = array("Q", [0])
        self._position = 0  # of the next piece in the file
        self._unparsed = b""  # the last bytes before it, if they begin a record's length

    def add(self, piece: bytes | np.ndarray) -> None:
        """Takes the file's next bytes, which are uint8 in an array."""
        data = np.frombuffer(self._unparsed + bytes(piece) if self._unparsed else piece, np.uint8)
        base = self._position - len(self._unparsed)
        self._position += len(piece)
        offset = self._offsets[-1] - base
        library = native.rows_library()
        ends = _record_ends(data, offset) if library is None else native.record_ends(library, data, offset)
        if len(ends):
            self._offsets.frombytes((ends + base).astype(np.uint64).tobytes())
            offset = int(ends[-1])
        self._unparsed = data[offset:].tobytes()

    def to_bytes(self) -> bytes:
        """Returns the content of the file with the offsets."""
        return np.array(self._offsets, "<u8").tobytes()


def _record_ends(data: np.ndarray, offset: int) -> np.ndarray:
    """`native.record_ends` without compiled code."""
    ends = []
    while offset + _LENGTH.size <= len(data):
        offset += min(_LENGTH.unpack_from(data, offset)[0], _BEYOND_ANY_FILE) + _FRAMING_BYTES
        ends.append(offset)
    return np.array(ends, np.int64)
