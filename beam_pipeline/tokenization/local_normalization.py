"""A normalizer that changes few characters, applied only around these: most text passes through unchanged."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers.normalizers import Normalizer

from beam_pipeline.tokenization.characters import CharacterSet

# Characters that never form a grapheme with the one before or after them, unless that one belongs to another category.
_SEPARATE_CATEGORIES = ("L", "N", "P", "S", "Zs")
# Exceptions: vowels of Thai and Lao, voiced marks, Hangul's parts, regional indicators, modifiers of emoji, and letters
# that are prefixes.
_JOINING = {0xE33, 0xEB3, 0xFF9E, 0xFF9F, 0xD4E, *range(0x1100, 0x1200), *range(0xA960, 0xA980)}
_JOINING |= {*range(0xD7B0, 0xD800), *range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400)}
# Scripts above this code have letters that are prefixes; only emoji are frequent in text.
_LAST_CODE = 0x10FFF
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
            char for char, result in normalized.items() if result == " " and keeps(exact, result)
        ]
        untouched = {*self._replaced, *(char for char, result in normalized.items() if result == char)}
        self._changed_characters = CharacterSet(
            lambda chars: [char not in untouched and not keeps(exact, char) for char in chars]
        )

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Returns the normalized texts."""
        positions = self._changed_characters.positions(texts)
        return [
            self._normalize(text, positions[index]) if index in positions else self._replace(text)
            for index, text in enumerate(texts)
        ]

    def _replace(self, text: str) -> str:
        for char in self._replaced:
            text = text.replace(char, " ")
        return text

    def _normalize(self, text: str, positions: Sequence[int]) -> str:
        parts = []
        copied_until = 0
        for start, end in _spans(positions, len(text)):
            parts.append(self._replace(text[copied_until:start]))
            parts.append(self._normalize_span(text[start:end]))
            copied_until = end
        parts.append(self._replace(text[copied_until:]))
        return "".join(parts)

    def _normalize_span(self, span: str) -> str:
        normalized = self._cache.get(span)
        if normalized is None:
            normalized = self._exact.normalize_str(span)
            if len(span) <= _MAX_CACHED_CHARS:
                if len(self._cache) >= _MAX_CACHED:
                    self._cache.clear()
                self._cache[span] = normalized
        return normalized


def _spans(positions: Sequence[int], length: int) -> list[tuple[int, int]]:
    """Returns the spans of characters with their neighbours. Spans that touch or overlap are joined.

    >>> _spans([0, 5, 7, 20], 21)
    [(0, 2), (4, 9), (19, 21)]
    """
    characters = np.asarray(positions)
    begins_span = np.concatenate([[True], np.diff(characters) > 2])
    ends_span = np.concatenate([begins_span[1:], [True]])
    starts = np.maximum(characters[begins_span] - 1, 0)
    ends = np.minimum(characters[ends_span] + 2, length)
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def keeps(exact: Normalizer, char: str) -> bool:
    """Determines whether the normalizer keeps a character wherever it occurs."""
    code = ord(char)
    is_grapheme = (
        (code <= _LAST_CODE or code in _EMOJI)
        and code not in _JOINING
        and unicodedata.category(char).startswith(_SEPARATE_CATEGORIES)
    )
    return is_grapheme and exact.normalize_str(char) == char
