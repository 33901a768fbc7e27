"""What a file is, by its first bytes: archives, tables and binary data are refused before they are read as text."""

from __future__ import annotations

import codecs
import io
import re
from typing import BinaryIO, Protocol

import orjson

from beam_pipeline.errors import UsageError
from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.lines import BOM

HEAD = 8 << 10

_RENAME = "it is decompressed only if its name ends with {}: rename it"
_RECOMPRESS = "decompress it, or compress it as .gz, .bz2 or .zst"
_EXTRACT = "extract its files first"
_EXPORT = "export its texts as jsonl or parquet"
_CONVERT = "convert it to UTF-8, e.g. with iconv -f {} -t UTF-8"
_PARQUET = "its name must end with .parquet, or use --input_format parquet"
_ARROW = "convert it to parquet, or read the dataset it belongs to with --dataset_name"
_TEXT_FIRST = "convert it to text first"
_NONE = "leave it out: it holds no text"

# (offset, bytes, what has them there, the remedy); none of them begins a text.
_SIGNATURES = (
    (0, b"\x1f\x8b", "gzip data", _RENAME.format(".gz")),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard data", _RENAME.format(".zst")),
    *((0, b"BZh%d1AY&SY" % level, "bzip2 data", _RENAME.format(".bz2")) for level in range(1, 10)),
    (0, b"\xfd7zXZ\0", "xz data", _RECOMPRESS),
    (0, b"\x04\x22\x4d\x18", "LZ4 data", _RECOMPRESS),
    (0, b"\x1f\x9d", "compress (.Z) data", _RECOMPRESS),
    (0, b"LZIP\x01", "lzip data", _RECOMPRESS),
    (0, b"\x5d\0\0", "LZMA data", _RECOMPRESS),
    (0, b"\xff\x06\0\0sNaPpY", "Snappy data", _RECOMPRESS),
    (257, b"ustar\0", "a tar archive", _EXTRACT),
    (257, b"ustar  \0", "a tar archive", _EXTRACT),
    (0, b"PK\x03\x04", "a zip archive (.zip, .docx, .xlsx, .epub, .jar, …)", _EXTRACT),
    (0, b"PK\x05\x06", "an empty zip archive", _EXTRACT),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _EXTRACT),
    (0, b"Rar!\x1a\x07", "a RAR archive", _EXTRACT),
    (0, b"%PDF-", "a PDF document", _TEXT_FIRST),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document (.doc, .xls, …)", _TEXT_FIRST),
    (0, b"PAR1\x15", "a parquet file", _PARQUET),
    (0, b"ARROW1\0", "an arrow file", _ARROW),
    (0, b"FEA1", "a feather file", _ARROW),
    (0, b"\xff\xff\xff\xff", "an arrow stream", _ARROW),
    (0, b"SQLite format 3\0", "an SQLite database", _EXPORT),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _EXPORT),
    (0, b"Obj\x01", "an Avro file", _EXPORT),
    (0, b"\x93NUMPY", "a NumPy array", _EXPORT),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", _NONE),
    (0, b"\xff\xd8\xff", "a JPEG image", _NONE),
    (0, b"\x7fELF", "a program", _NONE),
    (0, b"\xff\xfe\0\0", "UTF-32 text", _CONVERT.format("UTF-32")),
    (0, b"\0\0\xfe\xff", "UTF-32 text", _CONVERT.format("UTF-32")),
    (0, b"\xff\xfe", "UTF-16 text", _CONVERT.format("UTF-16")),
    (0, b"\xfe\xff", "UTF-16 text", _CONVERT.format("UTF-16")),
)

_BEGINS = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL),
}


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def checked(file: BinaryIO, path: str, form: str, options: InputConfig) -> BinaryIO | DecompressedFile:
    """The content of a text or jsonl file: of a compressed one, decompressed.

    Args:
      file: at its beginning; it must be seekable.
      path: of the file; its extension says whether it is compressed.
      form: `text` or `jsonl`.
      options: `input_format` text allows NUL bytes.

    Returns:
      What to read, at its beginning.

    Raises:
      UsageError: if the first bytes are not those of lines of text.
      DataError: if a compressed file is corrupt already there.
    """
    codec = codec_of(path)
    head = _read(file, HEAD)
    file.seek(0)
    stream: BinaryIO | DecompressedFile = file
    if codec:
        if len(head) > 3 and not _BEGINS[codec].match(head):
            what, _ = _identify(head) or ("no such data", "")
            raise UsageError(
                f"{path}: its name says {codec}, but it is {what}; give it the extension of what it is"
            )
        stream = DecompressedFile(file, codec, path)
        head = stream.peek(HEAD)
    found = _identify(head) or (_json(head) if form == "jsonl" else _binary(head, options))
    if found:
        what, remedy = found
        raise UsageError(f"{path}: {'holds' if codec else 'is'} {what}, not lines of {form}; {remedy}")
    return stream


def _read(file: _Readable, size: int) -> bytes:
    """The next `size` bytes, fewer only at the end."""
    data = io.BytesIO()
    while data.tell() < size and (piece := file.read(size - data.tell())):
        data.write(piece)
    return data.getvalue()


def _identify(head: bytes) -> tuple[str, str] | None:
    """What has these first bytes, and the remedy; None if no file that is known not to be lines of text."""
    for offset, magic, what, remedy in _SIGNATURES:
        if head.startswith(magic, offset):
            return what, remedy
    return None


def _binary(head: bytes, options: InputConfig) -> tuple[str, str] | None:
    """Whether these bytes are no text: NUL among bytes that are not UTF-8, or many of them. A text may hold a few."""
    nul = head.count(0)
    if options.input_format != "auto" or not nul:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut off
        if nul * 10 < len(head):
            return None
    except UnicodeDecodeError:
        pass  # binary
    return (
        f"binary data (byte {head.index(0)} is NUL)",
        "convert it or leave it out; if it is text all the same, --input_format text reads it as it is",
    )


def _json(head: bytes) -> tuple[str, str] | None:
    """Whether the file is one JSON value instead of one in each line."""
    start = head.removeprefix(BOM).lstrip()
    line = start.partition(b"\n")[0].strip()
    if line == b"{":
        return "one JSON object over several lines", "write each record on a line of its own: jq -c . FILE"
    if not line.startswith(b"["):
        return None
    try:
        first = orjson.loads(line)
    except orjson.JSONDecodeError:
        first = [{}]  # it goes on after the line, or after the first bytes
    if any(isinstance(item, dict) for item in first):
        return "one JSON array", "write each record on a line of its own: jq -c '.[]' FILE"
    return None
