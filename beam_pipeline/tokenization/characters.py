"""Sets of characters, and a fast search for them in a batch of texts, most of which contain none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

CODES = 0x110000

_LATIN_END = 0x250

_OUTSIDE, _INSIDE, _UNKNOWN = range(3)


class CharacterSet:
    """A set of characters. Texts have few different ones, so all but Latin ones are classified when they occur first.

    >>> CharacterSet(lambda chars: [char in "é!" for char in chars]).positions(["café!", "tea", "é"])
    {0: [3, 4], 2: [0]}

    Args:
        classify: Returns which of some different characters are in the set: one bool for each.
    """

    def __init__(self, classify: Callable[[list[str]], Iterable[bool]]):
        self._classify = classify
        self._states = np.full(CODES, _UNKNOWN, np.uint8)
        self._learn(np.arange(_LATIN_END))
        self._lowest_code = int(
            (self._states != _OUTSIDE).argmax()
        )  # among those in the set and those not classified yet
        self._outside_ascii = np.flatnonzero(self._states[:128] == _OUTSIDE).astype(np.uint8).tobytes()

    @classmethod
    def containing(cls, chars: Iterable[str]) -> CharacterSet:
        """Makes a set of these characters."""
        chars = frozenset(chars)
        return cls(lambda candidates: [char in chars for char in candidates])

    def _learn(self, codes: np.ndarray) -> None:
        self._states[codes] = np.fromiter(self._classify(list(map(chr, codes.tolist()))), np.uint8)

    def positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Finds the set's characters in texts.

        Returns:
            Their positions, ascending, by the index of the text. Texts without any are left out.
        """
        text_numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        if len(self._outside_ascii) < 128:
            ascii_texts = "".join(texts) if not text_numbers else "".join(filter(str.isascii, texts))
            # If anything remains without the ASCII characters outside of the set, the ASCII texts have to be searched.
            if ascii_texts.encode().translate(None, self._outside_ascii):
                text_numbers = list(range(len(texts)))
        if not text_numbers:
            return {}
        searched = [texts[number] for number in text_numbers]
        # UTF-32 is an array of code points.
        codes = np.frombuffer("".join(searched).encode("utf-32-le"), "<u4")
        if self._lowest_code < 128:
            matches = np.flatnonzero(self._states.take(codes) != _OUTSIDE)
        else:  # most characters of most texts precede all of the set, and a comparison is faster than a look-up
            matches = np.flatnonzero(codes >= self._lowest_code)
            matches = matches[self._states[codes[matches]] != _OUTSIDE]
        unknown = np.unique(codes[matches][self._states[codes[matches]] == _UNKNOWN])
        if len(unknown):
            self._learn(unknown)
        # Another thread may have learned some, too.
        matches = matches[self._states[codes[matches]] == _INSIDE]
        if not len(matches):
            return {}
        ends = np.cumsum(np.fromiter(map(len, searched), np.int64, len(searched)))
        text_index = np.searchsorted(ends, matches, side="right")
        starts = ends - np.diff(ends, prepend=0)
        bounds = np.flatnonzero(np.diff(text_index)) + 1  # between the positions of two texts
        owners = text_index[np.append(0, bounds)].tolist()
        parts = np.split(matches - starts[text_index], bounds)
        return {text_numbers[owner]: part.tolist() for owner, part in zip(owners, parts, strict=True)}
