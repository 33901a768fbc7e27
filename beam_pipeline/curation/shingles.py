"""The shingles of a text: all sequences of a few consecutive words, or characters, of the normalized text, as hashes.

A text of fewer words has one shingle, of all its words. A text without words, such as "???", has the hash of the text
itself. So each text has a shingle, and two texts have the same set if they differ in case, white space and punctuation.

The hash of a word is a polynomial of its UTF-8 bytes, that of a shingle a polynomial of the words' hashes, both modulo
2**64 and mixed by `mix64`. Two of the 10**12 shingles of 10 TB of text have the same hash with a chance of 0.03.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from beam_pipeline.curation.normalize import normalize_texts
from beam_pipeline.native.library import rows_library
from beam_pipeline.support.hashing import key64, mix64

_BYTE_FACTOR = 0x9DDFEA08EB382D69  # odd, so that powers have inverses
_ITEM_FACTOR = 0xC6A4A7935BD1E995
_KEYS = (np.uint64(key64("shingle set", 0)), np.uint64(key64("shingle set", 1)))
_SPACE, _NEWLINE = ord(" "), ord("\n")


@dataclass(frozen=True)
class ShingleSize:
    """The length of a shingle."""

    size: int
    """The number of words or characters, 1 to 1024 (MOST_WIDTH in shingles.c)."""
    characters: bool = False
    """Whether characters are counted, for languages that do not separate words; separators do not count."""

    @classmethod
    def from_option(cls, text: str) -> ShingleSize:
        """Returns the size that `--near_shingle` gives: "5" (words) or "24c" (characters)."""
        return cls(int(text.removesuffix("c")), text.endswith("c"))


@dataclass(frozen=True)
class ShingleSets:
    """The sets of hashed shingles of several texts."""

    hashes: np.ndarray
    """uint64 [shingles]: the sets, one after the other, each ascending and without repeats."""
    starts: np.ndarray
    """int64 [texts + 1]: the beginning of each set in `hashes`, and the end of the last."""

    def keys(self) -> np.ndarray:
        """Returns a 128-bit hash of each set: uint64 [texts, 2]."""
        if len(self.starts) == 1:
            return np.empty((0, 2), np.uint64)
        sums = [np.add.reduceat(mix64(self.hashes ^ key), self.starts[:-1]) for key in _KEYS]
        return np.stack(sums, axis=1)

    def bounds(self, indices: np.ndarray) -> np.ndarray:
        """Returns the begin and end in `hashes` of the sets with these indices: int64 [indices, 2]."""
        return np.stack([self.starts[indices], self.starts[indices + 1]], axis=1)

    def take(self, indices: np.ndarray) -> ShingleSets:
        """Returns the sets with these indices."""
        parts = [self.hashes[start:end] for start, end in self.bounds(indices).tolist()]
        return ShingleSets(np.concatenate([np.empty(0, np.uint64), *parts]), np.cumsum([0, *map(len, parts)]))

    @classmethod
    def concatenate(cls, several: Iterable[ShingleSets]) -> ShingleSets:
        """Returns the sets of several."""
        several = list(several)
        sizes = [np.diff(sets.starts) for sets in several]
        starts = np.cumsum(np.concatenate([[0], *sizes]).astype(np.int64))
        return cls(np.concatenate([np.empty(0, np.uint64), *(sets.hashes for sets in several)]), starts)


def shingle_sets(texts: list[str], size: ShingleSize) -> ShingleSets:
    """Returns the set of shingles of each text."""
    hashes, counts = shingles_in_order(normalize_texts(texts), len(texts), size)
    starts = np.concatenate([[0], np.cumsum(counts)])
    for index in np.flatnonzero((counts == 1) & (hashes[starts[:-1]] == 0)).tolist() if len(texts) else ():
        hashes[starts[index]] = key64(
            "text without words", texts[index].strip().encode(errors="surrogatepass")
        )
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        hashes[start:end].sort()
    keep = np.ones(len(hashes), bool)
    keep[1:] = hashes[1:] != hashes[:-1]
    keep[starts[:-1]] = True
    return ShingleSets(hashes[keep], np.concatenate([[0], np.cumsum(keep)])[starts])


def shingles_in_order(data: bytes, texts: int, size: ShingleSize) -> tuple[np.ndarray, np.ndarray]:
    """Returns the hashes of the shingles of normalized texts, in their order, and the number of each text's.

    A text without words has the placeholder 0.

    Args:
        data: What `normalize_texts` returns.
        texts: The number of texts.
        size: The length of a shingle.

    Returns:
        uint64 [shingles], int64 [texts].
    """
    return (_shingles if rows_library() is None else _compiled_shingles)(data, texts, size)


def _compiled_shingles(data: bytes, texts: int, size: ShingleSize) -> tuple[np.ndarray, np.ndarray]:
    """See `shingles_in_order`."""
    library = rows_library()
    hashes = np.empty(len(data), np.uint64)
    counts = np.empty(texts, np.int64)
    total = library.tokenmill_shingles(
        data, len(data), size.size, size.characters, hashes.ctypes.data, counts.ctypes.data
    )
    return hashes[:total], counts


def _shingles(data: bytes, texts: int, size: ShingleSize) -> tuple[np.ndarray, np.ndarray]:
    """See `shingles_in_order`."""
    codes = np.frombuffer(data, np.uint8)
    is_item = (codes != _SPACE) & (codes != _NEWLINE)
    begins = is_item.copy()
    if size.characters:
        begins &= (codes & 0xC0) != 0x80
    else:
        begins[1:] &= ~is_item[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(codes))
    lengths = np.add.reduceat(is_item.astype(np.int64), starts) if len(starts) else starts
    ends = starts + lengths
    # Σ (byte + 1) · factor**(end - 1 - place) is a difference of prefix sums with inverse powers of the factor.
    inverse = np.full(len(codes) + 1, pow(_BYTE_FACTOR, -1, 1 << 64), np.uint64)
    inverse[:1] = 1
    inverse = np.cumprod(inverse)
    power = np.full(len(codes) + 1, _BYTE_FACTOR, np.uint64)
    power[:1] = 1
    power = np.cumprod(power)
    terms = np.where(is_item, codes.astype(np.uint64) + np.uint64(1), np.uint64(0)) * inverse[:-1]
    prefix = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
    items = mix64((prefix[ends] - prefix[starts]) * power[np.maximum(ends, 1) - 1])
    text_of_item = np.searchsorted(np.flatnonzero(codes == _NEWLINE), starts)
    item_counts = np.bincount(text_of_item, minlength=texts)
    counts = np.maximum(1, item_counts - size.size + 1)
    # Each shingle begins at an item: the k-th shingle of a text at its k-th item.
    first_items = np.concatenate([[0], np.cumsum(item_counts)])[:-1]
    first_shingles = np.concatenate([[0], np.cumsum(counts)])[:-1]
    begin = np.arange(counts.sum()) - np.repeat(first_shingles - first_items, counts)
    used = np.repeat(np.minimum(item_counts, size.size), counts)
    rolled = np.zeros(len(begin), np.uint64)
    for offset in range(min(size.size, int(used.max(initial=0)))):
        inside = offset < used
        rolled[inside] = rolled[inside] * np.uint64(_ITEM_FACTOR) + items[begin[inside] + offset]
    return np.where(used > 0, mix64(rolled), np.uint64(0)), counts
