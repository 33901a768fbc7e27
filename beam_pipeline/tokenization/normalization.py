"""A tokenizer's normalizer, applied to whole batches outside of it and exactly as `tokenizers` does.

The fast engines know few normalizers. What Python's own string functions do just so is done by them; everything else
by the very component of the tokenizer, which is slow, so only on texts that it may change.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping

from tokenizers import Tokenizer
from tokenizers.normalizers import Normalizer

from beam_pipeline.tokenization.characters import CharacterSet

Step = Callable[[list[str]], list[str]]

# White_Space of Unicode, which is what Rust strips and splits at; `str.isspace` holds for four controls more.
RUST_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
RUST_SPACE += "\u2028\u2029\u202f\u205f\u3000"

# All that `str.isspace` holds for, as a character class: what `train-tokenizer` gives its Unigram tokenizers.
PYTHON_SPACE = RUST_SPACE + "\x1c\x1d\x1e\x1f"
FOLD_SPACE = f"[{PYTHON_SPACE}]+"

_TWO_SPACES = re.compile(" {2,}")
_PYTHON_SPACES = re.compile(r"\s+")
UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")

# Components that look at one character (or one grapheme) after the other.
_BY_CHARACTER = ("Precompiled", "Nmt", "StripAccents", "Lowercase")
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

# In characters. `tokenizers` uses 20 bytes and more for each byte of a text: longer texts go through it in pieces.
LONGEST_WORD = 1 << 20
_CUT = re.compile(r"(?<=[!-~])(?= [!-~])")


def steps(normalizer: Mapping | None) -> list[Step]:
    """The normalizer of a `tokenizer.json` as functions, to be applied one after the other."""
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for each in normalizer["normalizers"] for step in steps(each)]
    return [_native(normalizer) or _by_component(normalizer)]


def each(change: Callable[[str], str]) -> Step:
    """A step that does this with each text."""
    return lambda texts: list(map(change, texts))


def _native(part: Mapping) -> Step | None:
    kind = part["type"]
    if kind in UNICODE_FORMS:
        return _unicode_form(kind, component(part))
    if kind == "Prepend":
        return each(lambda text: part["prepend"] + text if text else text)
    if kind == "Strip":
        left, right = (RUST_SPACE if part[key] else "" for key in ("strip_left", "strip_right"))
        return each(lambda text: text.lstrip(left).rstrip(right))
    if kind == "Replace":
        return _replace(part["pattern"], part["content"])
    return None


def _replace(pattern: Mapping, content: str) -> Step | None:
    if pattern.get("String"):
        return each(lambda text: text.replace(pattern["String"], content))
    if pattern.get("Regex") == " {2,}":
        return each(lambda text: _TWO_SPACES.sub(content, text) if "  " in text else text)
    if pattern.get("Regex") == FOLD_SPACE and content == " ":
        return each(_fold_spaces)
    return None


def _fold_spaces(text: str) -> str:
    # No white space but U+0020 is printable, and this looks ten times as fast as a pattern.
    return text if text.isprintable() and "  " not in text else _PYTHON_SPACES.sub(" ", text)


def _unicode_form(form: str, exact: Normalizer) -> Step:
    """Python's normalization, but that of `tokenizers` for texts with characters on which the two do not agree."""

    def normalize(texts: list[str]) -> list[str]:
        numbers = [number for number, text in enumerate(texts) if not text.isascii()]
        if not numbers:
            return texts
        chosen = [texts[number] for number in numbers]
        differ = disagreeing(form).places(chosen)
        texts = list(texts)
        for index, number in enumerate(numbers):
            text = chosen[index]
            texts[number] = (
                exact.normalize_str(text) if index in differ else unicodedata.normalize(form, text)
            )
        return texts

    return normalize


@functools.cache
def disagreeing(form: str) -> CharacterSet:
    """Characters that `tokenizers` and this Python normalize differently.

    Their Unicode tables are of different versions, so characters that are new in one of them may be decomposed, or
    ordered among combining marks, in one and not in the other.
    """
    exact = component({"type": form})
    # Marks of five combining classes: where another one comes to stand among them tells its class.
    marks = "\u0345\u0315\u0300\u0316\u0334"
    candidates = [
        char
        for char in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE0200)))
        if unicodedata.decomposition(char) or unicodedata.combining(char)
    ]
    return CharacterSet.of(
        char
        for context in ("{}".format, f"a{marks}{{}}".format, f"a{{}}{marks}".format)
        for char, ours, theirs in zip(
            candidates, *_normalized_by_both(form, exact, candidates, context), strict=True
        )
        if ours != theirs
    )


def _normalized_by_both(
    form: str, exact: Normalizer, chars: list[str], context: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    # One text for all: a line feed is a starter that nothing combines with.
    text = "\n".join(map(context, chars))
    return unicodedata.normalize(form, text).split("\n"), exact.normalize_str(text).split("\n")


def component(part: Mapping) -> Normalizer:
    """The normalizer of `tokenizers` that this part of a `tokenizer.json` describes."""
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return Tokenizer.from_str(json.dumps({"version": "1.0", "normalizer": part, "model": empty})).normalizer


def _by_component(part: Mapping) -> Step:
    exact = component(part)
    by_character = part["type"] in _BY_CHARACTER
    printable = by_character and all(exact.normalize_str(char) == char for char in _PRINTABLE)

    def normalize(text: str) -> str:
        if printable and text.isascii() and text.isprintable():
            return text
        if part["type"] == "Lowercase" and text.isascii():
            return text.lower()
        if by_character and len(text) > LONGEST_WORD:
            return "".join(map(exact.normalize_str, cut(text, _CUT, LONGEST_WORD)))
        return exact.normalize_str(text)

    return each(normalize)


def cut(text: str, places: re.Pattern, most: int) -> list[str]:
    """Cuts a text where `places` match, into pieces of at most `most` characters where that is possible.

    A stretch without any such place is a piece of its own, longer than `most`, up to a limit of a million characters:
    what is longer (a "word" of a megabyte, in a broken file) is cut there, whatever `most` is, since no tokenizer
    could encode it in bounded memory.
    """
    pieces = []
    start = 0
    while len(text) - start > most:
        end = last_match(places, text, start + 1, start + most)
        if end is None:
            after = places.search(text, start + most)
            end = len(text) if after is None else after.start()
            while end - start > LONGEST_WORD:
                pieces.append(text[start : start + LONGEST_WORD])
                start += LONGEST_WORD
        pieces.append(text[start:end])
        start = end
    if start < len(text):
        pieces.append(text[start:])
    return pieces


def last_match(places: re.Pattern, text: str, start: int, end: int) -> int | None:
    """Where in [start, end] the last match of a pattern begins that looks at one character before and two after it."""
    width = 256  # windows grow from the end down, since there most often is one near
    while True:
        low = max(start, end - width)
        found = None
        for match in places.finditer(text, low, min(end + 2, len(text))):
            if match.start() <= end:
                found = match.start()
        if found is not None:
            return found
        if low == start:
            return None
        width *= 8
