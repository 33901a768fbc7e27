"""Opening the parts of a work unit: remote files with few requests, and small ones ahead of their turn."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from beam_pipeline import filesystem
from beam_pipeline.filesystem import RemoteObject
from beam_pipeline.sources.units import Part, WorkUnit

_FILES_AHEAD = 16
_SMALL = 4 << 20
_REQUEST = 8 << 20

_BEFORE = 4 << 10  # paragraphs: whether the line before a range is blank
_AFTER = 64 << 10  # the end of a range's last line; and that a file ends as expected
_FOOTER = 64 << 10  # Arrow reads so much of a parquet file's end first


class RangeFile(io.RawIOBase):
    """A remote object as a file of which one range is read from start to end.

    The range is fetched in requests of up to 8 MiB, which are kept until the next one. Other bytes take a request for
    each read.

    Args:
      remote: the object.
      start, end: the range, in bytes; it may end after the object.
      ahead: outside the range at least so much is fetched, and kept.
      size: of the object, if it is known.
    """

    def __init__(
        self, remote: RemoteObject, *, start: int = 0, end: int = 0, ahead: int = 0, size: int | None = None
    ):
        self._remote = remote
        self._start, self._end = start, end
        self._request = -(-(end - start) // max(1, -(-(end - start) // _REQUEST)))
        self._ahead = ahead
        self._size = size
        self._position = 0
        self._kept, self._kept_at = b"", 0

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
        """The next `size` bytes; fewer only if the object ends."""
        pieces = []
        while size > 0 and (piece := self._read_some(size)):
            self._position += len(piece)
            size -= len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def prefetch(self) -> None:
        """Fetches the range now if it is small."""
        if 0 < self._end - self._start <= _SMALL:
            position, self._position = self._position, self._start
            self._read_some(1)
            self._position = position

    def _read_some(self, size: int) -> bytes:
        begin = self._position - self._kept_at
        if 0 <= begin < len(self._kept):
            return self._kept[begin : begin + size]
        if self._size is not None and self._position >= self._size:
            return b""
        if not self._start <= self._position < self._end:
            data = self._fetch(self._position, max(size, self._ahead))
            if self._ahead:
                self._kept, self._kept_at = data, self._position
            return data[:size]
        first = self._position - (self._position - self._start) % self._request
        self._kept, self._kept_at = self._fetch(first, min(self._request, self._end - first)), first
        begin = self._position - first
        return self._kept[begin : begin + size]

    def _fetch(self, start: int, size: int) -> bytes:
        data = self._remote.read(start, start + size)
        if len(data) < size:
            self._size = start + len(data)
        return data


def open_parts(unit: WorkUnit) -> Iterator[BinaryIO]:
    """The file of each part, when it is its turn.

    If files are remote, the next ones are opened, and small ones read, while one is used: the answers to a few requests
    take longer than reading a small file.
    """
    if len(unit.parts) < 2 or filesystem.is_local(unit.root):
        yield from (_open(unit, part) for part in unit.parts)
        return
    with ThreadPoolExecutor(_FILES_AHEAD) as pool:
        coming = deque(pool.submit(_open_ahead, unit, part) for part in unit.parts[:_FILES_AHEAD])
        for number in range(len(unit.parts)):
            file = coming.popleft().result()
            if number + _FILES_AHEAD < len(unit.parts):
                coming.append(pool.submit(_open_ahead, unit, unit.parts[number + _FILES_AHEAD]))
            yield file


def open_footer(path: str, size: int) -> BinaryIO:
    """Opens a file of known size to read what its end says of it."""
    if path.startswith("gs://"):
        return RangeFile(RemoteObject(path), start=max(0, size - _FOOTER), end=size, size=size)
    return filesystem.open_file(path)


def open_start(path: str, size: int) -> BinaryIO:
    """Opens a file to read about its first `size` bytes."""
    return RangeFile(RemoteObject(path), end=size) if path.startswith("gs://") else filesystem.open_file(path)


def _open(unit: WorkUnit, part: Part) -> BinaryIO:
    path = unit.root + part.name
    if not path.startswith("gs://"):
        return filesystem.open_file(path)
    remote = RemoteObject(path)
    if unit.format == "arrow":
        return RangeFile(remote, ahead=_SMALL)
    if unit.format == "parquet":
        size = remote.size()
        return RangeFile(remote, end=size if size <= _SMALL else 0, size=size)
    return RangeFile(remote, start=max(0, part.start - _BEFORE), end=part.end + _AFTER)


def _open_ahead(unit: WorkUnit, part: Part) -> BinaryIO:
    file = _open(unit, part)
    if isinstance(file, RangeFile):
        file.prefetch()
        return file
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size > _SMALL:
        return file
    with file:
        return io.BytesIO(file.read())
