"""The repetition rules of Gopher (Rae et al. 2021, arXiv:2112.11446, table A1), as datatrove's GopherRepetitionFilter.

Each measure is a share of the text's lines or paragraphs, or of its characters. Repeats are counted without the first
occurrence, except for the most frequent n-gram, whose occurrences are all counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from beam_pipeline.curation.measuring import Limit, Measured, MeasuredTexts, Rule
from beam_pipeline.curation.words import Words
from beam_pipeline.support.hashing import mix64

_TOP = {2: 0.20, 3: 0.18, 4: 0.16}
_REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")


def measure(texts: MeasuredTexts, settings: Mapping[str, float]) -> Measured:
    """Measures repeated paragraphs, lines and n-grams of words."""
    paragraphs = np.array([_repeats(_PARAGRAPHS.split(text.strip())) for text in texts.texts]).reshape(-1, 3)
    lines = np.array([_repeats(_LINES.split(text)) for text in texts.texts]).reshape(-1, 3)
    lengths = np.maximum(1, texts.lengths)
    measures = {
        "repeated_paragraphs": paragraphs[:, 0] / paragraphs[:, 2],
        "repeated_paragraph_characters": paragraphs[:, 1] / lengths,
        "repeated_lines": lines[:, 0] / lines[:, 2],
        "repeated_line_characters": lines[:, 1] / lengths,
    }
    for name, characters in _n_grams(texts.words).items():
        measures[name] = characters / lengths
    return Measured(measures)


def repeated_characters(parts: Sequence[str]) -> int:
    """Returns the number of characters in parts that repeat an earlier one.

    >>> repeated_characters(["ab", "c", "ab", "ab"])
    4
    """
    return _repeats(parts)[1]


def _repeats(parts: Sequence[str]) -> tuple[int, int, int]:
    """Returns the number of parts that repeat an earlier one, of their characters, and of all parts."""
    unique = set(parts)
    if len(unique) == len(parts):
        return 0, 0, len(parts)
    characters = sum(map(len, parts)) - sum(map(len, unique))
    return len(parts) - len(unique), characters, len(parts)


def _n_grams(words: Words) -> dict[str, np.ndarray]:
    """Returns the characters in the most frequent n-gram and in repeated n-grams of each text: int64 [texts].

    A text has an n-gram twice only where it has the (n-1)-gram twice, so each length looks at fewer places. N-grams are
    compared by 64-bit hashes.
    """
    ends = np.concatenate([[0], np.cumsum(words.lengths)])
    hashes = mix64(words.ids.astype(np.uint64))
    stop = words.bounds[1:][words.texts]  # of each word's text
    places = np.arange(len(words.ids))
    grams = mix64(hashes + words.texts.astype(np.uint64))
    results = {}
    for n in range(2, max(_REPEATED) + 1):
        inside = places + n <= stop[places]
        places, grams = places[inside], grams[inside]
        grams = mix64(grams ^ hashes[places + n - 1])
        places, grams, groups = _repeated(places, grams)
        if n in _TOP:
            results[f"top_{n}_gram"] = _top(words, n, places, groups, ends)
        if n in _REPEATED:
            results[f"repeated_{n}_grams"] = _skipping(words, n, places, groups, ends)
    return results


def _repeated(places: np.ndarray, grams: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the places whose n-gram occurs twice, in ascending order, with their n-grams' hashes and numbers."""
    order = np.argsort(grams, kind="stable")
    ordered = grams[order]
    equal = ordered[1:] == ordered[:-1]
    repeated = np.concatenate([[False], equal]) | np.concatenate([equal, [False]])
    groups = np.empty(len(grams), np.int64)
    groups[order] = np.cumsum(np.concatenate([[True], ~equal])) if len(grams) else 0
    is_repeated = np.empty(len(grams), bool)
    is_repeated[order] = repeated[: len(grams)]
    return places[is_repeated], grams[is_repeated], groups[is_repeated]


def _top(words: Words, n: int, places: np.ndarray, groups: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the characters of all occurrences of the most frequent n-gram, the first such one, with its spaces."""
    sizes = np.zeros(len(words.counts), np.int64)
    has_any = words.counts >= n
    first = words.bounds[:-1][has_any]
    sizes[has_any] = ends[first + n] - ends[first] + n - 1  # if all occur once
    if len(places):
        _, firsts, counts = np.unique(groups, return_index=True, return_counts=True)
        at = places[firsts]
        texts = words.texts[at]
        order = np.lexsort((at, -counts, texts))
        best = order[np.concatenate([[True], np.diff(texts[order]) > 0])]
        at = at[best]
        sizes[texts[best]] = counts[best] * (ends[at + n] - ends[at] + n - 1)
    return sizes


def _skipping(words: Words, n: int, places: np.ndarray, groups: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the characters of n-grams that repeat an earlier one, where no two of these overlap."""
    sizes = np.zeros(len(words.counts), np.int64)
    known: set[int] = set()
    next_place = 0
    lengths = (ends[places + n] - ends[places]).tolist()
    for place, group, length, text in zip(
        places.tolist(), groups.tolist(), lengths, words.texts[places].tolist(), strict=True
    ):
        if place >= next_place:
            if group in known:
                sizes[text] += length
                next_place = place + n
            else:
                known.add(group)
    return sizes


RULE = Rule(
    "gopher_repetition",
    measure,
    (
        Limit("max_paragraphs", "repeated_paragraphs", 0.3),
        Limit("max_paragraph_characters", "repeated_paragraph_characters", 0.2),
        Limit("max_lines", "repeated_lines", 0.3),
        Limit("max_line_characters", "repeated_line_characters", 0.2),
        *(Limit(f"max_top_{n}_gram", f"top_{n}_gram", share) for n, share in _TOP.items()),
        *(Limit(f"max_{n}_grams", f"repeated_{n}_grams", share) for n, share in _REPEATED.items()),
    ),
    {},
)
