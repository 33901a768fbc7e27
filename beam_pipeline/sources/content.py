"""Recognizes files by their first bytes: archives, tables and binary data are refused before they are read as text."""

from __future__ import annotations

import codecs
import io
import re
from typing import BinaryIO, Protocol

import orjson

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.lines import BOM
from beam_pipeline.support.errors import UsageError

HEAD = 8 << 10

_RENAME = "it is decompressed only if its name ends with {}: rename it"
_RECOMPRESS = "decompress it, or compress it as .gz, .bz2, .zst, .xz or .lz4"
_EXTRACT = "extract its files first"
_EXPORT = "export its texts as jsonl or parquet"
_CONVERT = "convert it to UTF-8, e.g. with iconv -f {} -t UTF-8"
_PARQUET = "its name must end with .parquet, or use --input_format parquet"
_ARROW = "convert it to parquet, or read its dataset with --dataset_name"
_TEXT_FIRST = "convert it to text first"
_NO_TEXT = "leave it out: it contains no text"
_LEGACY_LZ4 = "LZ4 data in its legacy format"

# (offset, magic bytes, kind of file, remedy). No text file begins with any of these.
_SIGNATURES = (
    (0, b"\x1f\x8b", "gzip data", _RENAME.format(".gz")),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard data", _RENAME.format(".zst")),
    *((0, b"BZh%d1AY&SY" % level, "bzip2 data", _RENAME.format(".bz2")) for level in range(1, 10)),
    (0, b"\xfd7zXZ\0", "xz data", _RENAME.format(".xz")),
    (0, b"\x04\x22\x4d\x18", "LZ4 data", _RENAME.format(".lz4")),
    (0, b"\x02\x21\x4c\x18", _LEGACY_LZ4, "write it again: lz4 -dc FILE | lz4 > NEW"),
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
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", _NO_TEXT),
    (0, b"\xff\xd8\xff", "a JPEG image", _NO_TEXT),
    (0, b"\x7fELF", "a program", _NO_TEXT),
    (0, b"\xff\xfe\0\0", "UTF-32 text", _CONVERT.format("UTF-32")),
    (0, b"\0\0\xfe\xff", "UTF-32 text", _CONVERT.format("UTF-32")),
    (0, b"\xff\xfe", "UTF-16 text", _CONVERT.format("UTF-16")),
    (0, b"\xfe\xff", "UTF-16 text", _CONVERT.format("UTF-16")),
)

_COMPRESSION_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL),
    "xz": re.compile(rb"\xfd7zX"),
    "lz4": re.compile(rb"\x04\x22\x4d\x18|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL),
}


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def open_text(file: BinaryIO, path: str, form: str, options: InputConfig) -> BinaryIO | DecompressedFile:
    """Opens the content of a text or jsonl file, decompressed if necessary, and checks its first bytes.

    Args:
        file: Positioned at its beginning. It must be seekable.
        path: The file's path. Its extension determines the compression.
        form: `text` or `jsonl`.
        options: NUL bytes are allowed if `input_format` is `text`.

    Returns:
        The stream to read, positioned at its beginning.

    Raises:
        UsageError: If the file is recognized as something other than lines of text.
        DataError: If a compressed file is already corrupt in its first bytes.
    """
    codec = codec_of(path)
    head = _read_up_to(file, HEAD)
    file.seek(0)
    stream: BinaryIO | DecompressedFile = file
    if codec:
        if len(head) > 3 and not _COMPRESSION_MAGIC[codec].match(head):
            kind, remedy = _identify(head) or (f"not {codec} data", "")
            if kind != _LEGACY_LZ4:
                remedy = "rename it to match its content"
            raise UsageError(f"{path}: its extension means {codec}, but the file is {kind}; {remedy}")
        stream = DecompressedFile(file, codec, path)
        head = stream.peek(HEAD)
    kind_and_remedy = _identify(head) or (
        _identify_json(head) if form == "jsonl" else _identify_binary(head, options)
    )
    if kind_and_remedy:
        kind, remedy = kind_and_remedy
        raise UsageError(f"{path}: {'contains' if codec else 'is'} {kind}, not lines of {form}; {remedy}")
    return stream


def _read_up_to(file: Readable, size: int) -> bytes:
    """Returns the next `size` bytes, fewer only at the end of the file."""
    data = io.BytesIO()
    while data.tell() < size and (piece := file.read(size - data.tell())):
        data.write(piece)
    return data.getvalue()


def _identify(head: bytes) -> tuple[str, str] | None:
    """Returns (kind of file, remedy) for the first bytes of a known binary format, or None."""
    for offset, magic, kind, remedy in _SIGNATURES:
        if head.startswith(magic, offset):
            return kind, remedy
    return None


def _identify_binary(head: bytes, options: InputConfig) -> tuple[str, str] | None:
    """Detects binary data. Returns (kind of data, remedy), or None if the bytes may be text.

    Data is binary if it contains NUL bytes and is invalid in its encoding, or if at least a tenth of it is NUL. Text
    may contain a few NUL bytes.
    """
    num_nul = head.count(0)
    if options.input_format != "auto" or not num_nul:
        return None
    try:
        # Incremental, because `head` may end within a character.
        codecs.getincrementaldecoder(options.encoding)().decode(head)
        if num_nul * 10 < len(head):
            return None
    except UnicodeDecodeError:
        pass  # falls through: binary
    return (
        f"binary data (byte {head.index(0)} is NUL)",
        "convert it or leave it out; if it is text nevertheless, use --input_format text",
    )


def _identify_json(head: bytes) -> tuple[str, str] | None:
    """Detects files that are one JSON value instead of one per line. Returns (kind of file, remedy), or None."""
    start = head.removeprefix(BOM).lstrip()
    line = start.partition(b"\n")[0].strip()
    if line == b"{":
        return "one JSON object over several lines", "write one record per line: jq -c . FILE"
    if not line.startswith(b"["):
        return None
    try:
        items = orjson.loads(line)
    except orjson.JSONDecodeError:
        items = [{}]  # the array continues after this line, or after the bytes read here
    if any(isinstance(item, dict) for item in items):
        return "one JSON array", "write one record per line: jq -c '.[]' FILE"
    return None
