"""A reference for near-deduplication in plain Python, which compares all pairs."""

from __future__ import annotations

import unicodedata


def shingles(text: str, size: int) -> frozenset[tuple[str, ...]]:
    """Returns the shingles of a text, without any code of the pipeline; none if it has no words."""
    words = _separated(unicodedata.normalize("NFKC", _separated(text))).casefold().split()
    return frozenset(tuple(words[i : i + size]) for i in range(max(1, len(words) - size + 1)) if words)


def _separated(text: str) -> str:
    """Replaces what is neither letter, mark nor number by spaces."""
    return "".join(character if unicodedata.category(character)[0] in "LMN" else " " for character in text)


def similarity(one: frozenset, other: frozenset) -> float:
    return len(one & other) / len(one | other)


def clusters(texts: list[str], threshold: float, size: int) -> dict[int, int]:
    """Returns the first text of the cluster of each text that is not the first, by comparing all pairs."""
    sets = [shingles(text, size) for text in texts]
    firsts = list(range(len(texts)))

    def find(index: int) -> int:
        while firsts[index] != index:
            index = firsts[index]
        return index

    for later in range(len(texts)):
        for earlier in range(later):
            if similarity(sets[later], sets[earlier]) >= threshold:
                low, high = sorted((find(later), find(earlier)))
                firsts[high] = low
    return {index: find(index) for index in range(len(texts)) if find(index) != index}
