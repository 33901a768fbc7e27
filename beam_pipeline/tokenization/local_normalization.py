"""A normalizer that changes few characters, applied only around these: most text passes through unchanged."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers.normalizers import Normalizer

from beam_pipeline.tokenization.characters import CharacterSet

# Characters that never form a grapheme with the one before or after them, unless that one belongs to another category.
_ALONE = ("L", "N", "P", "S", "Zs")
# Exceptions: vowels of Thai and Lao, voiced marks, Hangul's parts, regional indicators, modifiers of emoji, and letters
# that are prefixes.
_NOT_ALONE = {0xE33, 0xEB3, 0xFF9E, 0xFF9F, 0xD4E, *range(0x1100, 0x1200), *range(0xA960, 0xA980)}
_NOT_ALONE |= {*range(0xD7B0, 0xD800), *range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400)}
# Beyond, scripts with letters that are prefixes; only emoji are frequent in text.
_LAST = 0x10FFF
_EMOJI = range(0x1F000, 0x20000)

_MAX_CACHED = 1 << 16
_MAX_CACHED_CHARS = 32


class LocalNormalizer:
    """Applies a normalizer that works grapheme by grapheme, or character by character.

    Characters that it keeps, and that form no grapheme with their neighbours, are never touched. Line feeds and the
    like, which it turns into spaces, are replaced. Every other character is normalized by the component itself,
    together with its two neighbours.

    Args:
        exact: The component.
    """

    def __init__(self, exact: Normalizer):
        self._exact = exact
        self._cache: dict[str, str] = {}
        # They end a grapheme, whatever is beside them; only a line feed may continue one, after a carriage return.
        normalized = {char: exact.normalize_str(char) for char in "\n\t\v\f"}
        self._replaced = [
            char for char, found in normalized.items() if found == " " and is_kept(exact, found)
        ]
        untouched = {*self._replaced, *(char for char, found in normalized.items() if found == char)}
        self._changed = CharacterSet(
            lambda chars: [char not in untouched and not is_kept(exact, char) for char in chars]
        )

    def __call__(self, texts: list[str]) -> list[str]:
        """Returns the normalized texts."""
        places = self._changed.places(texts)
        return [
            self._normalize(text, places[index]) if index in places else self._replace(text)
            for index, text in enumerate(texts)
        ]

    def _replace(self, text: str) -> str:
        for char in self._replaced:
            text = text.replace(char, " ")
        return text

    def _normalize(self, text: str, places: Sequence[int]) -> str:
        parts = []
        done = 0
        for start, end in _spans(places, len(text)):
            parts.append(self._replace(text[done:start]))
            parts.append(self._normalize_span(text[start:end]))
            done = end
        parts.append(self._replace(text[done:]))
        return "".join(parts)

    def _normalize_span(self, span: str) -> str:
        found = self._cache.get(span)
        if found is None:
            found = self._exact.normalize_str(span)
            if len(span) <= _MAX_CACHED_CHARS:
                if len(self._cache) >= _MAX_CACHED:
                    self._cache.clear()
                self._cache[span] = found
        return found


def _spans(places: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Returns the spans of the characters at `places` and their neighbours. Spans that touch or overlap are joined."""
    at = np.asarray(places)
    first = np.concatenate([[True], np.diff(at) > 2])
    last = np.concatenate([first[1:], [True]])
    starts, ends = np.maximum(at[first] - 1, 0), np.minimum(at[last] + 2, length)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def is_kept(exact: Normalizer, char: str) -> bool:
    """Whether the normalizer keeps a character wherever it is."""
    code = ord(char)
    alone = (
        (code <= _LAST or code in _EMOJI)
        and code not in _NOT_ALONE
        and unicodedata.category(char).startswith(_ALONE)
    )
    return alone and exact.normalize_str(char) == char
