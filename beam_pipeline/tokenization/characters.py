"""Sets of characters, and a fast search for them in a batch of texts, most of which contain none."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

CODES = 0x110000

_LATIN_END = 0x250

_OUT, _IN, _UNKNOWN = range(3)


class CharacterSet:
    """A set of characters. Texts have few different ones, so all but Latin ones are classified when they occur first.

    Args:
        classify: Returns which of some different characters are in the set: one bool for each.
    """

    def __init__(self, classify: Callable[[list[str]], Iterable[bool]]):
        self._classify = classify
        self._states = np.full(CODES, _UNKNOWN, np.uint8)
        self._learn(np.arange(_LATIN_END))
        self._first = int((self._states != _OUT).argmax())  # of those in the set or not yet classified
        self._other_ascii = np.flatnonzero(self._states[:128] == _OUT).astype(np.uint8).tobytes()

    @classmethod
    def of(cls, chars: Iterable[str]) -> CharacterSet:
        chars = frozenset(chars)
        return cls(lambda found: [char in chars for char in found])

    def _learn(self, codes: np.ndarray) -> None:
        self._states[codes] = np.fromiter(self._classify(list(map(chr, codes.tolist()))), np.uint8)

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
        if self._first < 128:
            found = np.flatnonzero(self._states.take(codes) != _OUT)
        else:  # most characters of most texts precede all of the set, and a comparison is faster than a look-up
            found = np.flatnonzero(codes >= self._first)
            found = found[self._states[codes[found]] != _OUT]
        new = np.unique(codes[found][self._states[codes[found]] == _UNKNOWN])
        if len(new):
            self._learn(new)
            found = found[self._states[codes[found]] == _IN]
        if not len(found):
            return {}
        ends = np.cumsum(np.fromiter(map(len, chosen), np.int64, len(chosen)))
        index = np.searchsorted(ends, found, side="right")
        starts = ends - np.diff(ends, prepend=0)
        bounds = np.flatnonzero(np.diff(index)) + 1  # between the places of two texts
        owners = index[np.append(0, bounds)].tolist()
        parts = np.split(found - starts[index], bounds)
        return {numbers[owner]: part.tolist() for owner, part in zip(owners, parts, strict=True)}
