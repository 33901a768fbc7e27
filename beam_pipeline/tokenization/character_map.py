"""A normalizer that maps each character by itself, such as BERT's, as tables for compiled code."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from tokenizers.normalizers import Normalizer

from beam_pipeline.native.library import rows_library
from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.support.texts import READ_BEYOND, Texts
from beam_pipeline.tokenization.characters import CODES

_LENGTH_BITS, _IN_CONTEXT, _REMOVED = 8, 255, 255  # as in characters.c
_MOST_UNKNOWN = 1 << 10  # characters that are learned at a time


class CharacterMap:
    """Applies a normalizer that maps each character to some characters, whatever is beside it. What each becomes is
    determined by the component itself, when the character occurs first.

    Marks that the component keeps may be reordered by it: texts with such a mark are normalized by the component. So
    are all texts without compiled code.

    Args:
        exact: The component.
    """

    def __init__(self, exact: Normalizer):
        self._exact = exact
        self._entries = np.zeros(CODES, np.uint64)
        self._pool = np.empty(0, np.uint8)  # what the characters become
        self._growth = 1.0  # the most bytes that a byte becomes
        self._lock = ForkableLock()
        becomes = [exact.normalize_str(chr(code)).encode() for code in range(128)]
        if any(len(new) > 1 for new in becomes):
            raise AssertionError("an ASCII character becomes several")
        self._ascii = bytes(new[0] if new else _REMOVED for new in becomes)

    def _learn(self, codes: np.ndarray) -> None:
        with self._lock.held:
            codes = codes[self._entries[codes] == 0]  # not those that another thread has learned
            chars = list(map(chr, codes.tolist()))
            becomes = [self._exact.normalize_str(char).encode() for char in chars]
            in_context = np.array(
                [
                    len(new) >= _IN_CONTEXT - 1 or (bool(new) and unicodedata.combining(char) > 0)
                    for char, new in zip(chars, becomes, strict=True)
                ],
                bool,
            )
            sizes = np.fromiter(map(len, becomes), np.int64, len(becomes))
            starts = len(self._pool) + np.cumsum(sizes) - sizes
            # The entries come last, since other threads use those that they see.
            growth = (len(new) / len(char.encode()) for char, new in zip(chars, becomes, strict=True))
            self._growth = max([self._growth, *growth])
            self._pool = np.concatenate([self._pool, np.frombuffer(b"".join(becomes), np.uint8)])
            numbers = np.where(in_context, _IN_CONTEXT, sizes + 1)
            self._entries[codes] = (starts << _LENGTH_BITS | numbers).astype(np.uint64)

    def __call__(self, texts: Sequence[str]) -> Sequence[str]:
        """Returns the normalized texts."""
        library = rows_library()
        if library is None:
            return list(map(self._exact.normalize_str, texts))
        texts = Texts.of(texts)
        unknown = np.empty(_MOST_UNKNOWN, np.uint32)
        starts, ends = np.empty((2, len(texts)), np.int64)
        while True:
            pool = self._pool  # before the growth, which is that of this pool at least
            data = np.empty(int(texts.sizes.sum() * self._growth) + READ_BEYOND, np.uint8)
            places = (array.ctypes.data for array in (texts.data, texts.starts, texts.ends))
            tables = self._ascii, self._entries.ctypes.data, pool.ctypes.data, len(pool)
            results = (array.ctypes.data for array in (data, starts, ends, unknown))
            count = library.tokenmill_map_characters(*places, len(texts), *tables, *results, len(unknown))
            if not count:
                break
            self._learn(np.unique(unknown[:count]))
        left_out = np.flatnonzero(ends < 0)
        if not len(left_out):
            return Texts(data, starts, ends)
        exact = Texts.of([self._exact.normalize_str(texts[index]) for index in left_out.tolist()])
        indices = np.arange(len(texts))
        indices[left_out] = len(texts) + np.arange(len(left_out))
        return Texts.join([Texts(data, starts, ends), exact]).take(indices)
