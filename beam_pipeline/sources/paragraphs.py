"""Reading a byte range of a file as paragraphs: what stands between lines of white space alone.

A paragraph belongs to the range that holds the first byte of its first line; a byte-order mark is part of that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from beam_pipeline.sources.lines import BOM, whole_lines, without_bom

_SPACE = b" \t\r\f\v"
_BLANK_LINES = rb"(?:[ \t\r\f\v]*\n)+"
_AT_START = re.compile(_BLANK_LINES)
_BETWEEN = re.compile(rb"\n" + _BLANK_LINES)


def paragraphs(
    file: BinaryIO, start: int, end: int | None, **reading: int
) -> Iterator[list[tuple[int, bytes]]]:
    """The paragraphs that begin in [start, end), some at a time, each as (its first byte's offset, its bytes).

    A paragraph keeps its inner line ends and has none at its end. It may be of any length: it is gathered piece
    by piece.

    Args:
      file: at its beginning.
      start, end: a range of bytes; without an `end` it goes on to the file's.
      reading: further arguments of `whole_lines`.

    Raises:
      EOFError: where the file ends before `end`.
    """
    last = float("inf") if end is None else end
    skipping: bool | None = None  # within a paragraph that began before `start`
    pieces: list[bytes] = []  # of the paragraph that the last block broke off
    first = 0  # its first byte
    for place, whole in whole_lines(file, start, end, beyond=True, **reading):
        if skipping is None:
            skipping = place > 0 and not _follows_blank_line(file, place)
        offset, block = without_bom(place, whole)
        if offset > place:  # the first line begins at byte 0, wherever the cut is within its mark
            last = max(last, offset + 1)
        found: list[tuple[int, bytes]] = []
        position = 0
        if blank := _AT_START.match(block):
            if pieces:
                found.append((first, _content(b"".join(pieces))))
                pieces = []
            skipping, position = False, blank.end()
        for gap in _BETWEEN.finditer(block, position):
            if pieces:
                found.append((first, _content(b"".join([*pieces, block[: gap.start()]]))))
                pieces = []
            elif skipping:
                skipping = False
            elif offset + position >= last:
                break
            else:
                found.append((offset + position, _content(block[position : gap.start()])))
            position = gap.end()
        rest = block[position:]
        if pieces:
            pieces.append(rest)
        elif rest and not skipping and offset + position < last:
            pieces, first = [rest], offset + position
        yield found
        if not pieces and offset + len(block) >= last:
            return
    if pieces:
        text = b"".join(pieces)
        solid = text.rstrip(_SPACE)  # the last line may be white space without a newline
        text = solid if solid.endswith(b"\n") else text
        if text.strip(_SPACE):
            yield [(first, _content(text))]


def _content(text: bytes) -> bytes:
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _follows_blank_line(file: BinaryIO, position: int) -> bool:
    """Whether the line that ends before `position` holds nothing but white space. Leaves the file where it was."""
    before = file.tell()
    end = position - 1
    blank = True
    while end > 0:
        begin = max(0, end - 4096)
        file.seek(begin)
        solid = file.read(end - begin).rstrip(_SPACE)
        if solid:
            blank = solid.endswith(b"\n") or (begin == 0 and solid == BOM)
            break
        end = begin
    file.seek(before)
    return blank
