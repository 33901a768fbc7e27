"""The compiled search for strings in texts (literals.c), called by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from enum import IntFlag

import numpy as np

from beam_pipeline.support.texts import Texts

_BYTES_PER_MATCH = 16  # if there are more matches, texts are searched twice


class Option(IntFlag):
    """What is special about a string. See `tokenmill_strings_find` in literals.c."""

    IGNORED = 1
    LSTRIP = 2
    RSTRIP = 4
    SINGLE_WORD = 8


class StringFinder:
    """A set of strings in the memory of the compiled library. Threads can use it at the same time.

    Args:
        library: See `rows_library`.
        strings: The strings, none of which is empty, and their options.
    """

    def __init__(self, library: ctypes.CDLL, strings: Mapping[str, Option]):
        self._library = library
        ordered = sorted(strings, key=str.encode)
        self.strings = ordered
        """The strings, in the order of their numbers."""
        encoded = list(map(str.encode, ordered))
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        numbers, scores = np.arange(len(ordered), dtype=np.uint32), np.zeros(len(ordered))
        options = np.fromiter((strings[string] for string in ordered), np.uint8, len(ordered))
        arrays = (array.ctypes.data for array in (ends, numbers, scores, options))
        self._set = library.tokenmill_strings_new(b"".join(encoded), *arrays, len(ordered))
        if not self._set:
            raise MemoryError(f"there is not enough memory for a set of {len(ordered)} strings")

    def __del__(self):
        self._library.tokenmill_strings_free(getattr(self, "_set", None))

    def find(self, texts: Texts) -> np.ndarray:
        """Finds the strings from left to right, and the longest one of a position. Python's lock is released.

        Returns:
            int64 [4, matches]: the index of each match's text, its start and its end among the texts' bytes, and the
            string's number, or -1 if it is unclear what this match is, and the rest of its text was not searched.
        """
        room = 64 + int(texts.sizes.sum()) // _BYTES_PER_MATCH
        while True:
            matches = np.empty((4, room), np.int64)
            arrays = (array.ctypes.data for array in (texts.data, texts.starts, texts.ends))
            count = self._library.tokenmill_strings_find(
                self._set, *arrays, len(texts), matches.ctypes.data, room
            )
            if count <= room:
                return matches[:, :count]
            room = count
