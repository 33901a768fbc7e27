"""Reading a byte range of a file as paragraphs, which are separated by lines of white space.

A paragraph belongs to the range that contains the first byte of its first line. A byte-order mark is part of that line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from beam_pipeline.sources.lines import BOM, whole_lines, without_bom

_SPACE = b" \t\r\f\v"
_BLANK_LINES = rb"(?:[ \t\r\f\v]*\n)+"
_LEADING_BLANK_LINES = re.compile(_BLANK_LINES)
_GAP = re.compile(rb"\n" + _BLANK_LINES)


def paragraphs(file: BinaryIO, start: int, end: int | None) -> Iterator[list[tuple[int, bytes]]]:
    """Yields the paragraphs that begin in [start, end), in lists of (offset of the first byte, bytes).

    A paragraph keeps its inner line ends and loses the last one. Paragraphs may have any length: a long one is
    collected piece by piece.

    Args:
        end: End of the range (exclusive). None reads to the end of the file.

    Raises:
        EOFError: If the file ends before `end`.
    """
    range_end = float("inf") if end is None else end
    is_skipping: bool | None = None  # whether the position is in a paragraph that began before `start`
    pieces: list[bytes] = []  # the beginning of a paragraph whose end has not been read yet
    paragraph_offset = 0  # of the first byte of `pieces`
    for block_offset, raw_block in whole_lines(file, start, end, past_end=True):
        if is_skipping is None:
            is_skipping = block_offset > 0 and not _follows_blank_line(file, block_offset)
        offset, block = without_bom(block_offset, raw_block)
        if offset > block_offset:
            # The first line begins at byte 0, with its byte-order mark. So it belongs to this range even if `end` falls
            # within the mark.
            range_end = max(range_end, offset + 1)
        complete: list[tuple[int, bytes]] = []
        position = 0
        # Blank lines at the start of the block end a paragraph of the previous block.
        if blank := _LEADING_BLANK_LINES.match(block):
            if pieces:
                complete.append((paragraph_offset, _content(b"".join(pieces))))
                pieces = []
            is_skipping, position = False, blank.end()
        # Each gap ends a paragraph: one that began in an earlier block, one to skip, or one within this block.
        for gap in _GAP.finditer(block, position):
            if pieces:
                complete.append((paragraph_offset, _content(b"".join([*pieces, block[: gap.start()]]))))
                pieces = []
            elif is_skipping:
                is_skipping = False
            elif offset + position >= range_end:
                break
            else:
                complete.append((offset + position, _content(block[position : gap.start()])))
            position = gap.end()
        # The text after the last gap may continue in the next block.
        remainder = block[position:]
        if pieces:
            pieces.append(remainder)
        elif remainder and not is_skipping and offset + position < range_end:
            pieces, paragraph_offset = [remainder], offset + position
        yield complete
        if not pieces and offset + len(block) >= range_end:
            return
    if pieces:
        text = b"".join(pieces)
        stripped = text.rstrip(_SPACE)  # the file's last line may be white space without a newline
        text = stripped if stripped.endswith(b"\n") else text
        if text.strip(_SPACE):
            yield [(paragraph_offset, _content(text))]


def _content(text: bytes) -> bytes:
    """Removes the line end (LF or CRLF) of a paragraph."""
    return text.removesuffix(b"\n").removesuffix(b"\r")


def _follows_blank_line(file: BinaryIO, position: int) -> bool:
    """Determines whether the line that ends before `position` is blank. Restores the file's position."""
    saved_position = file.tell()
    end = position - 1
    is_blank = True
    while end > 0:
        begin = max(0, end - 4096)
        file.seek(begin)
        stripped = file.read(end - begin).rstrip(_SPACE)
        if stripped:
            is_blank = stripped.endswith(b"\n") or (begin == 0 and stripped == BOM)
            break
        end = begin
    file.seek(saved_position)
    return is_blank
