"""Text files: a document is a line, a paragraph or a whole file. CRLF line ends within a document become LF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO

import google_crc32c
import numpy as np

from beam_pipeline.native.texts import is_utf8
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.document_kinds import document_kind
from beam_pipeline.sources.lines import line_bounds, undecodable, whole_lines, without_bom
from beam_pipeline.sources.paragraphs import paragraphs
from beam_pipeline.sources.units import BadRecord, Part, Records
from beam_pipeline.support.texts import READ_BEYOND, Texts

_BLOCK_BYTES = 4 << 20


def read(file: BinaryIO, part: Part, options: InputConfig, columns: Sequence[str] = ()) -> Iterator[Records]:
    """Yields the documents of a byte range, or of a whole file. All columns are null."""
    for records in _records(file, part, options):
        yield replace(records, columns={name: [None] * len(records.texts) for name in columns})


def _records(file: BinaryIO, part: Part, options: InputConfig) -> Iterator[Records]:
    kind = document_kind(part.name, options)
    if kind == "line":
        for offset, block in whole_lines(file, part.start, part.end):
            yield _line_records(part.name, *without_bom(offset, block), options)
    elif kind == "paragraph":
        for documents in paragraphs(file, part.start, part.end):
            yield _decode_documents(part.name, documents, options)
    else:
        pieces = []
        while piece := file.read(_BLOCK_BYTES):
            pieces.append(piece)
        content = b"".join(pieces)
        if part.end is not None and len(content) < part.end:
            raise EOFError(f"ends at byte {len(content)}, but had {part.end} bytes when it was listed")
        yield _decode_documents(part.name, [without_bom(0, content)], options)


def _line_records(name: str, offset: int, block: bytes, options: InputConfig) -> Records:
    """Makes each line of a block a document, and decodes all of them at once if they are valid."""
    starts, ends = line_bounds(block)
    places = starts + offset
    crc = google_crc32c.value(block)
    if options.encoding == "utf-8" and is_utf8(block):
        data = block + bytes(READ_BEYOND)
        if b"\r" in block:
            ends = ends - (np.frombuffer(data, np.uint8)[np.maximum(ends - 1, starts)] == 0x0D) * (
                ends > starts
            )
        return Records(Texts(data, starts, ends), places, crc=crc)
    try:
        texts = block.decode(options.encoding).split("\n")
    except UnicodeDecodeError:  # decode line by line, to find the bad ones
        lines = [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return _decode_documents(name, list(zip(places.tolist(), lines, strict=True)), options)
    if not texts[-1]:
        texts.pop()
    return Records(Texts.of(text.removesuffix("\r") for text in texts), places, crc=crc)


def _decode_documents(name: str, documents: Sequence[tuple[int, bytes]], options: InputConfig) -> Records:
    """Decodes documents one by one: (place, bytes)."""
    texts: list[str] = []
    places: list[int] = []
    bad_records: list[BadRecord] = []
    for place, content in documents:
        if b"\r" in content:
            content = content.removesuffix(b"\r").replace(b"\r\n", b"\n")
        try:
            texts.append(content.decode(options.encoding, options.encoding_errors))
            places.append(place)
        except UnicodeDecodeError:
            bad_records.append(BadRecord(name, place, undecodable(content, options.encoding), content))
    crc = google_crc32c.value(b"\0".join(content for _, content in documents))
    return Records(Texts.of(texts), np.array(places, np.int64), bad_records, crc)
