"""Opening the parts of a work unit: remote files with few requests, and small files ahead of time."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from beam_pipeline.sources.units import Part, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.buckets import RemoteObject

_FILES_AHEAD = 16
_MAX_SMALL_BYTES = 4 << 20
_MAX_REQUEST_BYTES = 8 << 20

_BYTES_BEFORE = 4 << 10  # read before a range, to see whether the line before it is blank (paragraphs)
_BYTES_AFTER = 64 << 10  # read after a range: the rest of its last line, or the end of the file
_FOOTER_BYTES = 64 << 10  # how much of a parquet file's end Arrow reads first


class RangeFile(io.RawIOBase):
    """A file interface to a remote object, for reading one range of it from start to end.

    The range is fetched in requests of up to 8 MiB; the data of the last request is buffered. Reads outside the range
    take one request each.

    Args:
        remote: The object.
        start: First byte of the range.
        end: End of the range (exclusive). It may exceed the size of the object.
        read_ahead: Minimum size in bytes of a request outside the range. If it is not 0, the data is buffered.
        size: Size of the object, if known.
    """

    def __init__(
        self,
        remote: RemoteObject,
        *,
        start: int = 0,
        end: int = 0,
        read_ahead: int = 0,
        size: int | None = None,
    ):
        self._remote = remote
        self._start, self._end = start, end
        # The range is divided into equal requests of at most 8 MiB.
        self._request_bytes = -(-(end - start) // max(1, -(-(end - start) // _MAX_REQUEST_BYTES)))
        self._read_ahead = read_ahead
        self._size = size
        self._position = 0
        self._buffer, self._buffer_start = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            if self._size is None:
                self._size = self._remote.size()
            offset += self._size
        elif whence == os.SEEK_CUR:
            offset += self._position
        self._position = offset
        return offset

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes, fewer only at the end of the object."""
        pieces = []
        while size > 0 and (piece := self._read_piece(size)):
            self._position += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def prefetch(self) -> None:
        """Fetches the range now if it is small."""
        if 0 < self._end - self._start <= _MAX_SMALL_BYTES:
            position, self._position = self._position, self._start
            self._read_piece(1)
            self._position = position

    def _read_piece(self, size: int) -> bytes:
        # From the buffer, if it contains the position.
        offset = self._position - self._buffer_start
        if 0 <= offset < len(self._buffer):
            return self._buffer[offset : offset + size]
        if self._size is not None and self._position >= self._size:
            return b""
        # Outside of the range: a request of its own.
        if not self._start <= self._position < self._end:
            data = self._fetch(self._position, max(size, self._read_ahead))
            if self._read_ahead:
                self._buffer, self._buffer_start = data, self._position
            return data[:size]
        # Within the range: fetch the request that contains the position.
        request_start = self._position - (self._position - self._start) % self._request_bytes
        request_size = min(self._request_bytes, self._end - request_start)
        self._buffer, self._buffer_start = self._fetch(request_start, request_size), request_start
        offset = self._position - request_start
        return self._buffer[offset : offset + size]

    def _fetch(self, start: int, size: int) -> bytes:
        data = self._remote.read(start, start + size)
        if len(data) < size:
            self._size = start + len(data)
        return data


def open_parts(unit: WorkUnit) -> Iterator[BinaryIO]:
    """Yields an open file for each part of the unit, in order.

    Remote files are opened in parallel ahead of their turn, and small ones are read completely: the latency of a few
    requests exceeds the time to read a small file.
    """
    if len(unit.parts) < 2 or filesystem.is_local(unit.root):
        yield from (_open(unit, part) for part in unit.parts)
        return
    with ThreadPoolExecutor(_FILES_AHEAD) as pool:
        pending = deque(pool.submit(_open_ahead, unit, part) for part in unit.parts[:_FILES_AHEAD])
        for index in range(len(unit.parts)):
            file = pending.popleft().result()
            if index + _FILES_AHEAD < len(unit.parts):
                pending.append(pool.submit(_open_ahead, unit, unit.parts[index + _FILES_AHEAD]))
            yield file


def open_footer(path: str, size: int) -> BinaryIO:
    """Opens a file of known size for reading its footer."""
    if filesystem.is_bucket(path):
        return RangeFile(RemoteObject(path), start=max(0, size - _FOOTER_BYTES), end=size, size=size)
    return filesystem.open_file(path)


def open_start(path: str, size: int) -> BinaryIO:
    """Opens a file for reading about `size` bytes from its beginning."""
    return (
        RangeFile(RemoteObject(path), end=size) if filesystem.is_bucket(path) else filesystem.open_file(path)
    )


def _open(unit: WorkUnit, part: Part) -> BinaryIO:
    path = unit.root + part.name
    if not filesystem.is_bucket(path):
        return filesystem.open_file(path)
    remote = RemoteObject(path)
    if unit.format == "arrow":
        return RangeFile(remote, read_ahead=_MAX_SMALL_BYTES)
    if unit.format == "parquet":
        size = remote.size()
        return RangeFile(remote, end=size if size <= _MAX_SMALL_BYTES else 0, size=size)
    return RangeFile(remote, start=max(0, part.start - _BYTES_BEFORE), end=part.end + _BYTES_AFTER)


def _open_ahead(unit: WorkUnit, part: Part) -> BinaryIO:
    file = _open(unit, part)
    if isinstance(file, RangeFile):
        file.prefetch()
        return file
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size > _MAX_SMALL_BYTES:
        return file
    with file:
        return io.BytesIO(file.read())
