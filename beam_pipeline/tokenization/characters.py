"""Sets of characters, and a fast search for them in a batch of texts, most of which contain none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

CODES = 0x110000


class CharacterSet:
    """A set of characters.

    Args:
        codes: bool [0x110000], True for the code points in the set.
    """

    def __init__(self, codes: np.ndarray):
        self._codes = codes
        self._first = int(codes.argmax())
        self._other_ascii = np.flatnonzero(~codes[:128]).astype(np.uint8).tobytes()

    @classmethod
    def of(cls, chars: Iterable[str]) -> CharacterSet:
        codes = np.zeros(CODES, bool)
        codes[[ord(char) for char in chars]] = True
        return cls(codes)

    def places(self, texts: list[str]) -> dict[int, list[int]]:
        """Finds the set's characters in texts.

        Returns:
            Their positions, ascending, by the index of the text. Texts without any are left out.
        """
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        if len(self._other_ascii) < 128:
            ascii_texts = "".join(texts) if not numbers else "".join(filter(str.isascii, texts))
            # If deleting all ASCII characters outside of the set leaves anything, the ASCII texts have to be searched.
            if ascii_texts.encode().translate(None, self._other_ascii):
                numbers = list(range(len(texts)))
        if not numbers:
            return {}
        chosen = [texts[number] for number in numbers]
        codes = np.frombuffer("".join(chosen).encode("utf-32-le"), "<u4")  # UTF-32 is an array of code points
        # Most characters of most texts precede all of the set, and a comparison is faster than a look-up.
        found = np.flatnonzero(codes >= self._first)
        found = found[self._codes[codes[found]]]
        if not len(found):
            return {}
        ends = np.cumsum(np.fromiter(map(len, chosen), np.int64, len(chosen)))
        index = np.searchsorted(ends, found, side="right")
        starts = ends - np.diff(ends, prepend=0)
        places: dict[int, list[int]] = {}
        for chosen_number, place in zip(index.tolist(), (found - starts[index]).tolist(), strict=True):
            places.setdefault(numbers[chosen_number], []).append(place)
        return places
