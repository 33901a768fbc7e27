"""The compiled reading of texts (texts.c), with what takes its place without a C compiler."""

from __future__ import annotations

import numpy as np

from beam_pipeline.native.library import rows_library
from beam_pipeline.support.texts import READ_BEYOND, Texts


def is_utf8(data: bytes) -> bool:
    """Determines whether bytes are valid UTF-8."""
    library = rows_library()
    if library is not None:
        return bool(library.tokenmill_is_utf8(data, len(data)))
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def line_feeds(block: bytes) -> np.ndarray:
    """Returns where each line feed is: int64 [line feeds]."""
    library = rows_library()
    if library is None:
        return np.flatnonzero(np.frombuffer(block, np.uint8) == 0x0A)
    places = np.empty(library.tokenmill_line_feeds(block, len(block), None), np.int64)
    library.tokenmill_line_feeds(block, len(block), places.ctypes.data)
    return places


def json_texts(block: bytes, starts: np.ndarray, ends: np.ndarray, key: str) -> tuple[Texts, np.ndarray]:
    """Reads the texts of JSON lines.

    Args:
        block: The lines, in UTF-8.
        starts: int64 [lines]: where each begins.
        ends: int64 [lines]: where each ends.
        key: The name of the texts.

    Returns:
        A text for each line, and which of them were read, bool [lines]. A line is left to another parser, and its text
        empty, if it is no JSON object that has a string under the key, or one that is hard to read.
    """
    library = rows_library()
    if library is None:
        none = np.zeros(len(starts), np.int64)
        return Texts(bytes(READ_BEYOND), none, none), np.zeros(len(starts), bool)
    data = np.empty(len(block) + READ_BEYOND, np.uint8)
    padded, name = block + bytes(READ_BEYOND), key.encode(errors="surrogatepass")
    places = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    text_places = np.empty_like(places[0]), np.empty_like(places[0])
    addresses = [array.ctypes.data for array in (*places, *text_places)]
    library.tokenmill_json_texts(
        padded, *addresses[:2], len(starts), name, len(name), data.ctypes.data, *addresses[2:]
    )
    is_read = text_places[1] >= 0
    return Texts(data, text_places[0], np.where(is_read, text_places[1], text_places[0])), is_read
