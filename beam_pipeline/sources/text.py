"""Text files: a document per line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from beam_pipeline.sources.lines import split_lines, whole_lines
from beam_pipeline.sources.units import BadRecord, DocumentBatch, Part, ReadOptions, utf8_sizes

_BOM = b"\xef\xbb\xbf"


def read(file: BinaryIO, part: Part, options: ReadOptions) -> Iterator[DocumentBatch]:
    """The documents of a byte range. Lines of white space alone are counted, not kept."""
    for offset, block in whole_lines(file, part.start, part.end):
        if offset == 0 and block.startswith(_BOM):
            offset, block = len(_BOM), block[len(_BOM) :]
        lines, places = split_lines(block)
        places += offset
        bad: list[BadRecord] = []
        try:
            texts = _decode(block)
        except UnicodeDecodeError:
            texts, kept = [], []
            for index, line in enumerate(lines):
                try:
                    texts.append(line.decode())
                    kept.append(index)
                except UnicodeDecodeError as error:
                    reason = f"invalid UTF-8 (byte 0x{line[error.start]:02x} at column {error.start})"
                    bad.append(BadRecord(part.name, int(places[index]), reason, line))
            lines, places = [lines[index] for index in kept], places[kept]
        sizes = np.fromiter(map(len, lines), np.int64, len(lines))
        yield drop_blank(part.name, texts, places, sizes, bad)


def _decode(block: bytes) -> list[str]:
    """All lines at once: one decode and one split a block, not one a line."""
    texts = block.decode().split("\n")
    if not texts[-1]:
        texts.pop()
    if b"\r\n" in block or block.endswith(b"\r"):
        texts = [text.removesuffix("\r") for text in texts]
    return texts


def drop_blank(
    name: str, texts: list[str], places: np.ndarray, sizes: np.ndarray | None, bad: list[BadRecord]
) -> DocumentBatch:
    """A batch of the texts that are more than white space; the others are counted."""
    kept = [index for index, text in enumerate(texts) if text and not text.isspace()]
    blank = len(texts) - len(kept)
    if blank:
        texts, places = [texts[index] for index in kept], places[kept]
        sizes = None if sizes is None else sizes[kept]
    return DocumentBatch(name, texts, places, utf8_sizes(texts) if sizes is None else sizes, blank, bad)
