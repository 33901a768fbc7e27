"""The offsets of the records in TFRecord shards, in a file for each shard (docs/dataset-format.md)."""

from __future__ import annotations

import struct
from array import array

import numpy as np

from beam_pipeline.native import library as native

_LENGTH = struct.Struct("<Q")
_FRAMING_BYTES = 16
_BEYOND = 2**62  # more than any file has


def offsets_size(records: int) -> int:
    """Returns the size of that file."""
    return _LENGTH.size * (records + 1)


class OffsetFinder:
    """Finds the records in the bytes of an intact TFRecord file, which it gets in pieces."""

    def __init__(self) -> None:
        self._places = array("Q", [0])
        self._position = 0  # of the next piece
        self._rest = b""  # the last bytes before it, if a record's length begins there

    def add(self, piece: bytes) -> None:
        """Takes the file's next bytes."""
        data = self._rest + piece if self._rest else piece
        base = self._position - len(self._rest)
        self._position += len(piece)
        place = self._places[-1] - base
        library = native.rows_library()
        ends = _record_ends(data, place) if library is None else native.record_ends(library, data, place)
        if len(ends):
            self._places.frombytes((ends + base).astype(np.uint64).tobytes())
            place = int(ends[-1])
        self._rest = data[place:]

    def to_bytes(self) -> bytes:
        """Returns the content of the file with the offsets."""
        return np.array(self._places, "<u8").tobytes()


def _record_ends(data: bytes, place: int) -> np.ndarray:
    """`native.record_ends` without compiled code."""
    ends = []
    while place + _LENGTH.size <= len(data):
        place += min(_LENGTH.unpack_from(data, place)[0], _BEYOND) + _FRAMING_BYTES
        ends.append(place)
    return np.array(ends, np.int64)
