"""Compressed files: detecting them by extension, and reading their decompressed content as a stream."""

from __future__ import annotations

import bz2
from typing import BinaryIO

import pyarrow as pa

from beam_pipeline.errors import DataError

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}

_COMPRESSED_BLOCK = 256 << 10


def codec_of(path: str) -> str | None:
    """Returns the compression of a file by its extension, or None if it is not compressed."""
    return _CODECS.get(path[path.rfind(".") :].lower())


def uncompressed_name(path: str) -> str:
    """Removes the extension of a compressed file's path."""
    return path.rpartition(".")[0] if codec_of(path) else path


class DecompressedFile:
    """The decompressed content of a gzip, bzip2 or Zstandard file, as a stream that keeps little in memory.

    Files of several members or frames are read to their end. A file that ends within a member, or has other bytes after
    one, is an error. Arrow's decompressors detect both, while Python's zlib and zstandard stop silently. For bzip2,
    Python's decompressor is used, because Arrow's fails on an empty member between others.
    """

    def __init__(self, file: BinaryIO, codec: str, path: str):
        self._file = file
        if codec == "bz2":
            self._stream = _Bzip2Stream(file)
        else:
            self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
        self._codec = codec
        self._path = path
        self._position = 0
        self._peeked = b""

    def peek(self, size: int) -> bytes:
        """Returns the first `size` bytes of the content, fewer if it is shorter. `read` returns them again.

        Raises:
            DataError: As `read` does.
        """
        pieces = []
        while size and (piece := self.read(size)):
            pieces.append(piece)
            size -= len(piece)
        self._peeked = b"".join(pieces)
        return self._peeked

    def read(self, size: int) -> bytes:
        """Returns the next bytes of the content, at most `size`; none at its end.

        Raises:
            DataError: If the file is truncated or corrupt.
        """
        if self._peeked:
            piece, self._peeked = self._peeked[:size], self._peeked[size:]
            return piece
        try:
            piece = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._path}: truncated or corrupt {self._codec} data before byte {self._file.tell()} of the "
                f"file, after {self._position} bytes of its content: {error}"
            ) from error
        self._position += len(piece)
        return piece


class _Bzip2Stream:
    """Decompresses the members of a bzip2 file one after the other."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._member = bz2.BZ2Decompressor()
        self._begun = False  # whether the current member has received any bytes

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._member.eof:
                data = self._member.unused_data
                self._member, self._begun = bz2.BZ2Decompressor(), False
            if not data and self._member.needs_input:
                data = self._file.read(_COMPRESSED_BLOCK)
                if not data:
                    if self._begun:
                        raise OSError("it ends within a bzip2 stream")
                    return b""
            self._begun = True
            if piece := self._member.decompress(data, size):
                return piece
