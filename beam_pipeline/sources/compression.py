"""Compressed files: which they are, and reading them as a stream of their content."""

from __future__ import annotations

from typing import BinaryIO

import pyarrow as pa

from beam_pipeline.errors import DataError

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def codec_of(path: str) -> str | None:
    """How a file is compressed, by its extension; None where it is not."""
    return next((codec for suffix, codec in _CODECS.items() if path.lower().endswith(suffix)), None)


def uncompressed_name(path: str) -> str:
    """The path less the extension that says how it is compressed."""
    return path.rpartition(".")[0] if codec_of(path) else path


class DecompressedFile:
    """The content of a gzip, bzip2 or Zstandard file as a stream, of which little is in memory at a time.

    Files of several members or frames are read to their end. A file that ends within one, and bytes that are none,
    are errors: Arrow's decompressors notice both, where those of Python's zlib and zstandard stop silently.

    Args:
      file: the compressed file, at its beginning.
      codec: as `codec_of` gives it.
      path: for messages.
    """

    def __init__(self, file: BinaryIO, codec: str, path: str):
        self._file = file
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
        self._codec = codec
        self._path = path
        self._position = 0

    def read(self, size: int) -> bytes:
        """The next bytes of the content, at most `size`; none at its end.

        Raises:
          DataError: where the file is truncated or corrupt.
        """
        try:
            piece = self._stream.read(size)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{self._path}: truncated or corrupt {self._codec} data before byte {self._file.tell()} of the "
                f"file, after {self._position} bytes of its content: {error}"
            ) from error
        self._position += len(piece)
        return piece
