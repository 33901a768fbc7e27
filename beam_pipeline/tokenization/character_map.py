"""A normalizer that maps each character by itself, such as BERT's, as arrays."""

from __future__ import annotations

import unicodedata
from itertools import accumulate, pairwise

import numpy as np
from tokenizers.normalizers import Normalizer

from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.tokenization.characters import CODES

_UNKNOWN, _IN_CONTEXT = -1, -2


class CharacterMap:
    """Applies a normalizer that maps each character to some characters, whatever is beside it. What each becomes is
    determined by the component itself, when the character occurs first.

    Marks that the component keeps may be reordered by it: texts with such a mark are normalized by the component.

    Args:
        exact: The component.
    """

    def __init__(self, exact: Normalizer):
        self._exact = exact
        self._starts = np.zeros(CODES, np.int64)  # of what a character becomes, in `_pool`
        self._lengths = np.full(CODES, _UNKNOWN, np.int8)
        self._pool = np.empty(0, np.uint32)
        self._lock = ForkableLock()
        self._learn(np.arange(128))
        becomes = [exact.normalize_str(chr(code)).encode() for code in range(128)]
        self._ascii = bytes(new[0] if len(new) == 1 else 0 for new in becomes)
        self._removed = bytes(code for code, new in enumerate(becomes) if not new)
        if any(len(new) > 1 for new in becomes):
            raise AssertionError("an ASCII character becomes several")

    def _learn(self, codes: np.ndarray) -> None:
        with self._lock:
            codes = codes[self._lengths[codes] == _UNKNOWN]  # not those that another thread has learned
            chars = list(map(chr, codes.tolist()))
            becomes = list(map(self._exact.normalize_str, chars))
            lengths = np.fromiter(map(len, becomes), np.int64, len(becomes))
            self._starts[codes] = len(self._pool) + np.cumsum(lengths) - lengths
            new = np.frombuffer("".join(becomes).encode("utf-32-le"), "<u4")
            self._pool = np.concatenate([self._pool, new.astype(np.uint32)])
            in_context = [
                bool(new) and unicodedata.combining(char) > 0
                for char, new in zip(chars, becomes, strict=True)
            ]
            # Last, since other threads map a character whose length is known.
            self._lengths[codes] = np.where(in_context, _IN_CONTEXT, lengths)

    def __call__(self, texts: list[str]) -> list[str]:
        """Returns the normalized texts."""
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        results = [
            text.encode().translate(self._ascii + bytes(128), self._removed).decode()
            if text.isascii()
            else text
            for text in texts
        ]
        for number, result in zip(numbers, self._map([texts[number] for number in numbers]), strict=True):
            results[number] = result
        return results

    def _map(self, texts: list[str]) -> list[str]:
        if not texts:
            return []
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        lengths = self._lengths[codes]
        if (lengths == _UNKNOWN).any():
            self._learn(np.unique(codes[lengths == _UNKNOWN]))
            lengths = self._lengths[codes]
        if (lengths == _IN_CONTEXT).any():
            return list(map(self._exact.normalize_str, texts))
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        positions = np.arange(ends[-1]) + np.repeat(self._starts[codes] - ends[:-1], lengths)
        joined = self._pool[positions].tobytes().decode("utf-32-le")
        bounds = ends[list(accumulate(map(len, texts), initial=0))].tolist()
        return [joined[start:end] for start, end in pairwise(bounds)]
