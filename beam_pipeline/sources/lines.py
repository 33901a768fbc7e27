"""Reading a byte range of a file as whole lines: a line belongs to the range that holds its first byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

BOM = b"\xef\xbb\xbf"

_BLOCK = 4 << 20
_FIRST_PAST_END = 64 << 10  # past a range's end only the rest of one record is wanted


def whole_lines(
    file: BinaryIO, start: int, end: int | None, *, beyond: bool = False, block_bytes: int = _BLOCK
) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in [start, end), in blocks of a few MiB.

    Neighbouring ranges together yield every line once, wherever they meet. A line may be of any length: it
    is gathered piece by piece, and no byte is looked at twice.

    Args:
      file: at its beginning; it must be seekable where `start` is above 0.
      start, end: a range of bytes; without an `end` it goes on to the file's.
      beyond: go on past `end`, too, in blocks of whole lines, for as long as the caller asks.
      block_bytes: how much is read at once.

    Yields:
      (offset of the block's first byte, the block): whole lines, the last one with its newline unless the file ends
      without one.

    Raises:
      EOFError: where the file ends before `end`.
    """
    position = start
    if start > 0:
        position = _next_line(file, start - 1, end, block_bytes)
        if position == end:
            return
        file.seek(position)
    pieces: list[bytes] = []  # of the line that the last block broke off
    first = position
    past = min(_FIRST_PAST_END, block_bytes)
    while True:
        if end is None:
            wanted = block_bytes
        elif position < end:
            wanted = min(block_bytes, end - position)
        else:
            wanted, past = past, min(2 * past, block_bytes)
        piece = file.read(wanted)
        if not piece:
            break
        only_one = end is not None and position >= end and not beyond
        cut = piece.find(b"\n") + 1 if only_one else piece.rfind(b"\n") + 1
        position += len(piece)
        if not cut:
            pieces.append(piece)
            continue
        block = b"".join([*pieces, piece[:cut]]) if pieces else piece[:cut]
        pieces = [piece[cut:]] if cut < len(piece) else []
        yield first, block
        first += len(block)
        if end is not None and first >= end and not beyond:
            return
    if end is not None and position < end:
        raise EOFError(f"ends at byte {position}, though it had at least {end} when it was listed")
    if pieces:
        yield first, b"".join(pieces)


def _next_line(file: BinaryIO, position: int, end: int | None, block_bytes: int) -> int:
    """Where the first line after the byte at `position` begins; `end` where none begins before it."""
    file.seek(position)
    wanted = min(_FIRST_PAST_END, block_bytes)
    while end is None or position < end:
        piece = file.read(wanted if end is None else min(wanted, end - position))
        if not piece:
            raise EOFError(f"ends at byte {position}, within a range that it held when it was listed")
        newline = piece.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(piece)
        wanted = min(2 * wanted, block_bytes)
    return position


def line_bounds(block: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line of a block of whole lines begins and ends (its newline left out): int64 [lines] each."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == 0x0A)
    if block and not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    return starts, ends


def without_bom(offset: int, block: bytes) -> tuple[int, bytes]:
    """A block at `offset` less the byte-order mark that a file may begin with."""
    if offset == 0 and block.startswith(BOM):
        return len(BOM), block[len(BOM) :]
    return offset, block


def line_number(file: BinaryIO, offset: int) -> int:
    """The number, from 1, of the line that holds the byte at `offset` of a file at its beginning: it reads up to
    there, so it is for error messages."""
    number = 1
    while offset > 0 and (piece := file.read(min(_BLOCK, offset))):
        number += piece.count(b"\n")
        offset -= len(piece)
    return number


def invalid_utf8(record: bytes) -> str | None:
    """What is wrong with the first bytes of `record` that are no UTF-8; None where all of it is fine."""
    try:
        record.decode()
    except UnicodeDecodeError as error:
        line = record.count(b"\n", 0, error.start)
        column = error.start - (record.rfind(b"\n", 0, error.start) + 1) + 1
        where = f"byte {column} of its line {line + 1}" if line else f"column {column}"
        hint = (
            "; it looks like UTF-16: convert it to UTF-8" if record[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        )
        return f"invalid UTF-8: byte 0x{record[error.start]:02x} at {where} (counted in bytes){hint}"
    return None
