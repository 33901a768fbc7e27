"""Reading a byte range of a file as whole lines. A line belongs to the range that contains its first byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from beam_pipeline.native.texts import line_feeds

BOM = b"\xef\xbb\xbf"

_BLOCK_BYTES = 4 << 20
_FIRST_READ_PAST_END = 64 << 10  # past the range's end, only the rest of its last record is needed


def whole_lines(
    file: BinaryIO, start: int, end: int | None, *, past_end: bool = False
) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that begin in [start, end), in blocks of a few MiB.

    Adjacent ranges together yield every line exactly once, wherever the boundary falls. Lines may have any length:
    a long line is collected piece by piece, and no byte is scanned twice.

    >>> from io import BytesIO
    >>> content = b"one\\ntwo\\nthree\\n"
    >>> list(whole_lines(BytesIO(content), 2, 7)), list(whole_lines(BytesIO(content), 7, 14))
    ([(4, b'two\\n')], [(8, b'three\\n')])

    Args:
        file: Positioned at its beginning. It must be seekable if `start` is above 0.
        start: First byte of the range.
        end: End of the range (exclusive). None reads to the end of the file.
        past_end: Keep yielding blocks of whole lines past `end`, for as long as the caller iterates.

    Yields:
        (offset of the block's first byte, block). A block consists of whole lines; the last line of a file may lack its
        newline.

    Raises:
        EOFError: If the file ends before `end`.
    """
    position = start
    if start > 0:
        # If the byte before `start` is a newline, a line begins at `start`. Otherwise `start` is within a line of the
        # previous range. So the search for a newline begins one byte early.
        position = _next_line(file, start - 1, end)
        if position == end:
            return
        file.seek(position)
    pieces: list[bytes] = []  # the beginning of a line whose newline has not been read yet
    block_offset = position  # offset of the next block: of pieces[0] if there are any
    past_end_size = min(_FIRST_READ_PAST_END, _BLOCK_BYTES)
    while True:
        if end is None:
            read_size = _BLOCK_BYTES
        elif position < end:
            read_size = min(_BLOCK_BYTES, end - position)
        else:  # the last line crosses `end`: most lines end soon, so the reads start small and grow
            read_size, past_end_size = past_end_size, min(2 * past_end_size, _BLOCK_BYTES)
        piece = file.read(read_size)
        if not piece:
            break
        # Within the range, a block ends after the last newline that was read. Past `end`, only the line that crosses
        # `end` belongs to the range, so the block ends after the first newline.
        crosses_end = end is not None and position >= end and not past_end
        block_end = piece.find(b"\n") + 1 if crosses_end else piece.rfind(b"\n") + 1
        position += len(piece)
        if not block_end:
            pieces.append(piece)
            continue
        block = b"".join([*pieces, memoryview(piece)[:block_end]])
        pieces = [piece[block_end:]] if block_end < len(piece) else []
        yield block_offset, block
        block_offset += len(block)
        if end is not None and block_offset >= end and not past_end:
            return
    if end is not None and position < end:
        raise EOFError(f"ends at byte {position}, but had at least {end} bytes when it was listed")
    if pieces:
        yield block_offset, b"".join(pieces)


def _next_line(file: BinaryIO, position: int, end: int | None) -> int:
    """Returns the offset of the first line that begins after the byte at `position`; `end` if none begins before it."""
    file.seek(position)
    read_size = min(_FIRST_READ_PAST_END, _BLOCK_BYTES)
    while end is None or position < end:
        piece = file.read(read_size if end is None else min(read_size, end - position))
        if not piece:
            raise EOFError(f"ends at byte {position}, but was longer when it was listed")
        newline = piece.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(piece)
        read_size = min(2 * read_size, _BLOCK_BYTES)
    return position


def line_bounds(block: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start and the end of each line in a block of whole lines, without newlines: int64 [lines] each.

    >>> line_bounds(b"one\\n\\ntwo")
    (array([0, 4, 5]), array([3, 4, 8]))
    """
    ends = line_feeds(block)
    if block and not block.endswith(b"\n"):
        ends = np.append(ends, len(block))
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    return starts, ends


def without_bom(offset: int, block: bytes) -> tuple[int, bytes]:
    """Removes the byte-order mark, if the block at `offset` is the first of a file and begins with one."""
    if offset == 0 and block.startswith(BOM):
        return len(BOM), block[len(BOM) :]
    return offset, block


def line_number(file: BinaryIO, offset: int) -> int:
    """Returns the number of the line that contains the byte at `offset`, counted from 1.

    Reads the file from its beginning up to that byte, so this is for error messages only.

    Args:
        file: Positioned at its beginning.
        offset: In bytes.
    """
    number = 1
    while offset > 0 and (piece := file.read(min(_BLOCK_BYTES, offset))):
        number += piece.count(b"\n")
        offset -= len(piece)
    return number


def undecodable(record: bytes, encoding: str = "utf-8") -> str | None:
    """Describes the first bytes of a record that are invalid in the encoding. Returns None if the record is valid."""
    try:
        record.decode(encoding)
    except UnicodeDecodeError as error:
        line = record.count(b"\n", 0, error.start)
        column = error.start - (record.rfind(b"\n", 0, error.start) + 1) + 1
        place = f"byte {column} of its line {line + 1}" if line else f"column {column}"
        hint = (
            "; it looks like UTF-16: convert it to UTF-8"
            if record[:2] in (b"\xff\xfe", b"\xfe\xff")
            else "; --encoding sets another encoding, and --encoding_errors replace replaces such bytes"
        )
        name = "UTF-8" if encoding == "utf-8" else encoding
        return f"invalid {name}: byte 0x{record[error.start]:02x} at {place} (counted in bytes){hint}"
    return None
