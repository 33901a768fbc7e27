"""Reading a byte range of a file as whole lines: a line belongs to the range that holds its first byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

_BLOCK = 4 << 20


def whole_lines(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in [start, end), in blocks of a few MiB.

    Neighbouring ranges together yield every line once, wherever they meet. A line may be of any length: it
    is gathered piece by piece, and no byte is looked at twice.

    Yields:
      (offset of the block's first byte, the block): whole lines, the last one with its newline unless the file ends
      without one.
    """
    position = start
    if start > 0:
        position = _next_line(file, start - 1, end)
        if position >= end:
            return
    file.seek(position)
    pieces: list[bytes] = []  # of the line that the last block broke off
    first = position
    while True:
        # Past `end` only the rest of the last line is wanted.
        piece = file.read(_BLOCK if position >= end else min(_BLOCK, end - position))
        position += len(piece)
        cut = piece.find(b"\n") + 1 if position - len(piece) >= end else piece.rfind(b"\n") + 1
        if cut:
            block = b"".join([*pieces, piece[:cut]])
            yield first, block
            first += len(block)
            pieces = [piece[cut:]]
            if first >= end:
                return
        else:
            pieces.append(piece)
        if not piece:
            rest = b"".join(pieces)
            if rest and first < end:
                yield first, rest
            return


def _next_line(file: BinaryIO, position: int, end: int) -> int:
    """Where the first line after the byte at `position` begins; at least `end` where none begins before it."""
    file.seek(position)
    while position < end:
        piece = file.read(min(_BLOCK, end - position))
        if not piece:
            break
        newline = piece.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(piece)
    return end


def split_lines(block: bytes) -> tuple[list[bytes], np.ndarray]:
    """The block's lines without their ends (LF or CRLF), and each line's offset in the block (int64)."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    sizes = np.fromiter(map(len, lines), np.int64, len(lines)) + 1
    if b"\r\n" in block or block.endswith(b"\r"):
        lines = [line.removesuffix(b"\r") for line in lines]
    return lines, np.cumsum(sizes) - sizes


def line_number(file: BinaryIO, offset: int) -> int:
    """The number, from 1, of the line that begins at `offset`: for error messages, since it reads up to there."""
    file.seek(0)
    number = 1
    while offset > 0 and (piece := file.read(min(_BLOCK, offset))):
        number += piece.count(b"\n")
        offset -= len(piece)
    return number
