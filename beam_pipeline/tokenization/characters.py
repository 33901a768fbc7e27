"""Sets of characters, and where in a batch of texts they stand: quick, since most texts hold none of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

CODES = 0x110000


class CharacterSet:
    """Some characters.

    Args:
      codes: bool [0x110000], True for the code points in the set.
    """

    def __init__(self, codes: np.ndarray):
        self._codes = codes
        self._other_ascii = np.flatnonzero(~codes[:128]).astype(np.uint8).tobytes()

    @classmethod
    def of(cls, chars: Iterable[str]) -> CharacterSet:
        codes = np.zeros(CODES, bool)
        codes[[ord(char) for char in chars]] = True
        return cls(codes)

    def places(self, texts: list[str]) -> dict[int, list[int]]:
        """Where the set's characters stand, ascending, by the number of the text; texts without them are left out."""
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        ascii_texts = "".join(texts) if not numbers else "".join(filter(str.isascii, texts))
        if ascii_texts.encode().translate(None, self._other_ascii):  # what is left without these
            numbers = list(range(len(texts)))
        if not numbers:
            return {}
        chosen = [texts[number] for number in numbers]
        codes = np.frombuffer("".join(chosen).encode("utf-32-le"), "<u4")  # UTF-32 is an array of code points
        found = np.flatnonzero(self._codes[codes])
        if not len(found):
            return {}
        ends = np.cumsum(np.fromiter(map(len, chosen), np.int64, len(chosen)))
        index = np.searchsorted(ends, found, side="right")
        starts = ends - np.diff(ends, prepend=0)
        places: dict[int, list[int]] = {}
        for chosen_number, place in zip(index.tolist(), (found - starts[index]).tolist(), strict=True):
            places.setdefault(numbers[chosen_number], []).append(place)
        return places
