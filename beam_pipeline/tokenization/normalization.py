"""A tokenizer's normalizer, applied to whole batches outside of the tokenizer, exactly as `tokenizers` does.

The fast engines support few normalizers. Python's string functions perform the steps for which they give identical
results. The tokenizer's own component performs the others. It is slow, so it gets only the texts that it may change.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller

import numpy as np
from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer

from beam_pipeline.tokenization.character_map import CharacterMap
from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.local_normalization import LocalNormalizer
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent

Step = Callable[[Sequence[str]], Sequence[str]]

# Unicode's White_Space, at which Rust strips and splits. `str.isspace` includes four more control characters.
RUST_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
RUST_SPACE += "\u2028\u2029\u202f\u205f\u3000"

# All characters of `str.isspace`. `train-tokenizer` uses this class in the normalizer of its Unigram tokenizers.
ONLY_PYTHON_SPACE = "\x1c\x1d\x1e\x1f"
PYTHON_SPACE = RUST_SPACE + ONLY_PYTHON_SPACE
FOLD_SPACE = f"[{PYTHON_SPACE}]+"

_TWO_SPACES = re.compile(" {2,}")
UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")

# Components that process one character (or one grapheme) at a time.
_CHARACTER_WISE = ("Precompiled", "Nmt", "StripAccents")

# In characters. `tokenizers` uses at least 20 bytes of memory per byte of text: longer texts are processed in pieces.
LONGEST_WORD = 1 << 20


def steps(normalizer: Mapping | None) -> list[Step]:
    """Converts the normalizer of a `tokenizer.json` to functions, to be applied one after the other."""
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for part in normalizer["normalizers"] for step in steps(part)]
    return [_python_step(normalizer) or _component_step(normalizer)]


def for_each(change: Callable[[str], str]) -> Step:
    """Makes a step that applies `change` to each text."""
    return lambda texts: list(map(change, texts))


def _python_step(part: Mapping) -> Step | None:
    """Implements a part of the normalizer with Python's string functions; None if they cannot do exactly the same."""
    kind = part["type"]
    if kind in UNICODE_FORMS:
        return _unicode_form(kind, build_normalizer(part))
    if kind == "Prepend":
        return for_each(lambda text: part["prepend"] + text if text else text)
    if kind == "Strip":
        left_chars, right_chars = (RUST_SPACE if part[key] else "" for key in ("strip_left", "strip_right"))
        return for_each(lambda text: text.lstrip(left_chars).rstrip(right_chars))
    if kind == "Replace":
        return _replace(part["pattern"], part["content"])
    return None


def _replace(pattern: Mapping, content: str) -> Step | None:
    if pattern.get("String"):
        return for_each(methodcaller("replace", pattern["String"], content))
    if pattern.get("Regex") == " {2,}":
        return for_each(lambda text: _TWO_SPACES.sub(content, text) if "  " in text else text)
    if pattern.get("Regex") == FOLD_SPACE and content == " ":
        return _fold_spaces
    return None


def _fold_spaces(texts: Sequence[str]) -> list[str]:
    return [
        text.replace("\n", " ") if folded else _fold_space_runs(text)
        for text, folded in zip(texts, has_single_spaces(texts), strict=True)
    ]


def _fold_space_runs(text: str) -> str:
    # A pattern takes three times as long. `split` drops the white space around the text.
    words = " ".join(text.split())
    prefix = " " if text[:1].isspace() else ""
    return prefix + words + " " if words and text[-1].isspace() else prefix + words


def has_single_spaces(texts: Sequence[str]) -> list[bool]:
    """Determines for each text whether its only white space is single spaces and line feeds; False is always allowed.

    ASCII texts are searched together: `in` takes six times as long for two spaces.

    >>> has_single_spaces(["one two", "two  spaces", "a tab\\t", "ünï code"])
    [True, False, False, True]
    """
    results = [not text.isascii() and _has_single_spaces(text.replace("\n", " ")) for text in texts]
    numbers = [number for number, text in enumerate(texts) if text.isascii()]
    joined = "x" + "x".join(texts[number] for number in numbers)
    codes = np.frombuffer(joined.replace("\n", " ").encode(), np.uint8)
    is_white = codes <= 32
    violations = np.flatnonzero((is_white[1:] & is_white[:-1]) | (codes[1:] < 32))
    ends = np.cumsum(np.fromiter((len(texts[number]) + 1 for number in numbers), np.int64, len(numbers)))
    failing = set(np.searchsorted(ends, violations, side="right").tolist())
    for index, number in enumerate(numbers):
        results[number] = index not in failing
    return results


def _has_single_spaces(text: str) -> bool:
    # U+0020 is the only printable white space.
    return text.isprintable() and "  " not in text


def _unicode_form(form: str, exact: Normalizer) -> Step:
    """Uses Python's normalization, except for texts with characters that `tokenizers` normalizes differently."""

    def normalize(texts: Sequence[str]) -> Sequence[str]:
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        if not numbers:
            return texts
        non_ascii = [texts[number] for number in numbers]
        differing = differing_characters(form).positions(non_ascii)
        texts = list(texts)
        for index, number in enumerate(numbers):
            text = non_ascii[index]
            texts[number] = (
                exact.normalize_str(text) if index in differing else unicodedata.normalize(form, text)
            )
        return texts

    return normalize


@functools.cache
def differing_characters(form: str) -> CharacterSet:
    """Returns the characters that `tokenizers` and this Python normalize differently.

    Their Unicode tables have different versions. A character that is new in one of them may be decomposed, or reordered
    among combining marks, by only one of the two.
    """
    exact = build_normalizer({"type": form})
    # Marks of five combining classes: the position that another mark takes among them reveals its class.
    marks = "\u0345\u0315\u0300\u0316\u0334"

    def differ(chars: list[str]) -> list[bool]:
        # One text for all characters, separated by line feeds, which combine with nothing.
        lines = [f"{char}\0a{marks}{char}\0a{char}{marks}" if char > "\x7f" else "" for char in chars]
        text = "\n".join(lines)
        results = unicodedata.normalize(form, text).split("\n"), exact.normalize_str(text).split("\n")
        return [python_result != exact_result for python_result, exact_result in zip(*results, strict=True)]

    return CharacterSet(differ)


def build_normalizer(part: Mapping) -> Normalizer:
    """Builds the `tokenizers` normalizer that a part of a `tokenizer.json` describes."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "normalizer": part, "model": empty})).normalizer


def _component_step(part: Mapping) -> Step:
    """Applies the tokenizer's own component, and skips text that it certainly does not change."""
    exact = build_normalizer(part)
    if part["type"] in _CHARACTER_WISE:
        return LocalNormalizer(exact)
    if part["type"] == "BertNormalizer":
        return CharacterMap(exact)
    if part["type"] == "Lowercase":
        return _lowercase(exact)
    if part["type"] == "Replace" and _matches_nothing(part["pattern"]):
        # `tokenizers` panics if it inserts text at the end of a text, but only while it encodes.
        raise UnsupportedComponent(f"a normalizer that replaces nothing by '{part['content']}'")
    return for_each(exact.normalize_str)


def _matches_nothing(pattern: Mapping) -> bool:
    """Determines whether a pattern matches the empty string after a letter, a digit, a sign, or a space."""
    mark = build_normalizer({"type": "Replace", "pattern": pattern, "content": "\uffff"})
    return any(mark.normalize_str(char).lstrip("\uffff") == char + "\uffff" for char in "a1. ")


def _lowercase(exact: Normalizer) -> Step:
    """Uses Python's `lower`, except for texts with characters that `tokenizers` lower-cases differently."""

    def lower(texts: Sequence[str]) -> list[str]:
        differing = _differing_in_lower_case().positions(texts)
        return [
            exact.normalize_str(text) if index in differing else text.lower()
            for index, text in enumerate(texts)
        ]

    return lower


@functools.cache
def _differing_in_lower_case() -> CharacterSet:
    exact = build_normalizer({"type": "Lowercase"})
    # A sigma that ends a word has another lower case, but not in `tokenizers`.
    return CharacterSet(
        lambda chars: [char == "Σ" or char.lower() != exact.normalize_str(char) for char in chars]
    )


def cut(text: str, pattern: re.Pattern, max_chars: int) -> list[str]:
    """Cuts a text at matches of `pattern` into pieces of at most `max_chars` characters, as far as possible.

    >>> cut("the quick foxes run", re.compile("(?= )"), 9)
    ['the quick', ' foxes', ' run']

    A stretch without a match becomes a longer piece, of up to a million characters. A stretch that is longer still (a
    "word" of a megabyte, in a broken file) is cut after each million characters, whatever `max_chars` is, since no
    tokenizer could encode it in bounded memory.
    """
    pieces = []
    start = 0
    while len(text) - start > max_chars:
        # Cut at the last match within the limit, or else at the first one after it.
        end = last_match(pattern, text, start + 1, start + max_chars)
        if end is None:
            next_match = pattern.search(text, start + max_chars)
            end = len(text) if next_match is None else next_match.start()
            while end - start > LONGEST_WORD:
                pieces.append(text[start : start + LONGEST_WORD])
                start += LONGEST_WORD
        pieces.append(text[start:end])
        start = end
    if start < len(text):
        pieces.append(text[start:])
    return pieces


def last_match(pattern: re.Pattern, text: str, start: int, end: int) -> int | None:
    """Returns the start of the last match in [start, end], or None if there is none.

    The pattern may examine one character before its match and two after it.
    """
    width = 32  # search a window before `end`, which usually has a match; widen it if it has none
    while True:
        low = max(start, end - width)
        start_of_last = None
        for match in pattern.finditer(text, low, min(end + 2, len(text))):
            if match.start() <= end:
                start_of_last = match.start()
        if start_of_last is not None:
            return start_of_last
        if low == start:
            return None
        width *= 8
