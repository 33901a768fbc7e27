"""Compressed files: detecting them by extension, and reading their decompressed content as a stream."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple, Protocol

from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError, one_line

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz", ".lz4": "lz4"}

# Parts of Arrow's messages about intact files, and the remedies.
_REASONS = {
    "too much memory": "its window is larger than 128 MiB; compress it again with --long=27 or less: "
    "zstd -dc --long=31 FILE | zstd --long=27 > NEW",
    "ictionary": "it was compressed with a dictionary; compress it again without one",
}

_COMPRESSED_BLOCK = 256 << 10


def codec_of(path: str) -> str | None:
    """Returns the compression of a file by its extension, or None if it is not compressed."""
    return _CODECS.get(path[path.rfind(".") :].lower())


def extension(path: str) -> str:
    """Returns the extension of a file's path, that of its content if it is compressed, in lower case."""
    name = path.rpartition(".")[0] if codec_of(path) else path
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (may be a URL)


class _TrailingDataError(OSError):
    """A file has other bytes after its compressed data."""


class DecompressedFile:
    """The decompressed content of a compressed file, as a stream that keeps little in memory.

    Files of several members or frames are read to their end. A file that ends within a member, or has other bytes after
    one, is an error; Python's bz2, lzma and zstandard ignore such bytes silently. Zeros after the last member are
    ignored, as the tools gzip, bzip2 and xz do.
    """

    def __init__(self, file: BinaryIO, codec: str, path: str):
        self._file = file
        if codec in _MEMBER_FORMATS:
            self._stream = _MemberStream(file, _MEMBER_FORMATS[codec])
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
        except (OSError, pa.ArrowException, zlib.error, lzma.LZMAError) as error:
            raise DataError(f"{self._path}: {self._explain(error)}") from error
        self._position += len(piece)
        return piece

    def _explain(self, error: Exception) -> str:
        message = one_line(error)
        if isinstance(error, _TrailingDataError):
            return message
        if reasons := [reason for part, reason in _REASONS.items() if part in message]:
            return f"{reasons[0]} ({message})"
        return (
            f"truncated or corrupt {self._codec} data before byte {self._file.tell()} of the file, after "
            f"{self._position} bytes of its content: {message}"
        )


class _Decompressor(Protocol):
    """A decompressor of one member, such as `bz2.BZ2Decompressor`."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipDecompressor:
    """Decompresses one member of a gzip file, with the interface of `bz2.BZ2Decompressor`."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._is_output_full = (
            False  # whether the last output reached its limit, so there may be further output
        )

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._is_output_full and not self._member.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._member.decompress(self._member.unconsumed_tail + data, max_length)
        self._is_output_full = len(piece) == max_length
        return piece


class _MemberFormat(NamedTuple):
    """A format of members that follow each other."""

    tool: str
    make: Callable[[], _Decompressor]
    magic: bytes
    """The first bytes of a member."""
    padding: int
    """The number of zeros after a member is a multiple of this."""
    continues: bool
    """Whether a member may follow the zeros."""


_MEMBER_FORMATS = {
    "gzip": _MemberFormat("gzip", _GzipDecompressor, b"\x1f\x8b", 1, False),
    "bz2": _MemberFormat("bzip2", bz2.BZ2Decompressor, b"BZh", 1, False),
    "xz": _MemberFormat("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), b"\xfd7zXZ\0", 4, True),
}


class _MemberStream:
    """Decompresses the members of a file one after the other."""

    def __init__(self, file: BinaryIO, member_format: _MemberFormat):
        self._file = file
        self._format = member_format
        self._member: _Decompressor | None = None

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._member is None or self._member.eof:
                data = self._next_member()
                if not data:
                    return b""
                self._member = self._format.make()
            elif self._member.needs_input:
                data = self._file.read(_COMPRESSED_BLOCK)
                if not data:
                    raise OSError("it ends within a member")
            if piece := self._member.decompress(data, size):
                return piece

    def _next_member(self) -> bytes:
        """Returns the first bytes of the next member; none if the file ends."""
        if self._member is None:
            return self._file.read(_COMPRESSED_BLOCK)
        member_format, zeros, data = self._format, 0, self._member.unused_data
        while True:
            stripped = data.lstrip(b"\0")
            zeros += len(data) - len(stripped)
            if len(stripped) >= len(member_format.magic):
                break
            block = self._file.read(_COMPRESSED_BLOCK)
            if not block:
                break
            data = stripped + block
        is_padding = zeros % member_format.padding == 0 and (
            member_format.continues or not zeros or not stripped
        )
        if not is_padding or not member_format.magic.startswith(stripped[: len(member_format.magic)]):
            raise _TrailingDataError(
                f"its {member_format.tool} data is followed by {'zeros and ' if zeros else ''}other bytes (before "
                f"byte {self._file.tell()} of the file). {member_format.tool} -d does not decompress them; if they are "
                f"not needed, leave them out: {member_format.tool} -dc FILE | {member_format.tool} > NEW"
            )
        return stripped
