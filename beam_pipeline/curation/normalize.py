"""Normalization of texts for comparisons: the words of a text without its case, white space and punctuation.

1. Characters other than letters, marks and numbers (Unicode's categories L, M and N) separate words.
2. Words are brought into NFKC, so that equal characters have equal codes ("ﬁ" is "fi", full-width "Ａ" is "A").
3. Separators that NFKC creates ("½" becomes "1⁄2") separate words, too.
4. Case is folded ("Straße" and "STRASSE" are equal).

Categories and forms are those of Python's Unicode database.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_SPACE = ord(" ")


class Words(NamedTuple):
    """The normalized words of a text."""

    words: list[str]
    """The words."""
    spans: np.ndarray
    """int64 [words, 2]: the first character of the text from which each word was made, and the one after the last."""


def normalize_texts(texts: list[str]) -> bytes:
    r"""Normalizes many texts at once.

    >>> normalize_texts(["It's  THE “ﬁrst”.", "½ Straße!"])
    b'it s  the  first  \n1 2 strasse \n'

    Returns:
        UTF-8, in which one or more spaces separate the words, and a line feed ends each text.
    """
    others = iter(_normalize_lines([text for text in texts if not text.isascii()]))
    table = _ascii_table()
    return b"".join(
        text.encode().translate(table) + b"\n" if text.isascii() else next(others) for text in texts
    )


def _normalize_lines(texts: list[str]) -> list[bytes]:
    """Returns the lines of `normalize_texts`. The passes over characters are for all texts together."""
    if not texts:
        return []
    codes = _code_points("".join(text + "\n" for text in texts))
    is_kept = _word_characters()[codes]
    is_kept[np.cumsum([len(text) + 1 for text in texts]) - 1] = (
        True  # the line feeds, but not those within texts
    )
    lines = _decode(np.where(is_kept, codes, np.uint32(_SPACE))).splitlines(keepends=True)
    for index, line in enumerate(lines):
        if not unicodedata.is_normalized("NFKC", line):
            lines[index] = _blank(unicodedata.normalize("NFKC", line)[:-1]) + "\n"
    return "".join(lines).casefold().encode().splitlines(keepends=True)


def normalize_words(text: str) -> Words:
    """Normalizes a text, and locates each word in it.

    >>> normalize_words("½ a Cup").words
    ['1', '2', 'a', 'cup']

    Returns:
        The words of `normalize_texts`. Several words have the same span if NFKC has divided one.
    """
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    is_word = np.concatenate([[False], _word_characters()[_code_points(text)], [False]])
    edges = np.flatnonzero(is_word[1:] != is_word[:-1]).reshape(-1, 2)
    for start, end in edges.tolist():
        word = text[start:end]
        parts = [word.lower()] if word.isascii() else _divide(word)
        words += parts
        spans += [(start, end)] * len(parts)
    return Words(words, np.array(spans, np.int64).reshape(-1, 2))


def _divide(word: str) -> list[str]:
    """Returns the normalized words that NFKC makes of a word of the text."""
    return _blank(unicodedata.normalize("NFKC", word)).casefold().split()


def _blank(text: str) -> str:
    """Replaces separators by spaces."""
    codes = _code_points(text)
    return _decode(np.where(_word_characters()[codes], codes, np.uint32(_SPACE)))


def _code_points(text: str) -> np.ndarray:
    """Returns the text's characters, uint32 [characters]."""
    # surrogatepass, because texts can have lone surrogates.
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), np.uint32)


def _decode(codes: np.ndarray) -> str:
    """Inverts `_code_points`."""
    return codes.tobytes().decode("utf-32-le")


@lru_cache(maxsize=1)
def _word_characters() -> np.ndarray:
    """Returns, for each code point, whether it is a letter, mark or number: bool [code points]."""
    categories = (unicodedata.category(chr(code))[0] for code in range(sys.maxunicode + 1))
    return np.fromiter((category in "LMN" for category in categories), bool, sys.maxunicode + 1)


@lru_cache(maxsize=1)
def _ascii_table() -> bytes:
    """Returns the table with which `bytes.translate` normalizes ASCII."""
    return bytes(ord(chr(code).lower()) if chr(code).isalnum() else _SPACE for code in range(128)) + bytes(
        128
    )
