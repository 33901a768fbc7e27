"""Falcon's pre-tokenizer: it splits punctuation from other text, and digits from the bytes of words.

`Digits` comes after `ByteLevel`, so it also cuts inside of characters: six bytes of UTF-8 are represented by characters
that are numeric in Unicode, such as `²`. HF encodes words with characters that contain these bytes.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from tokenizers.pre_tokenizers import Punctuation

from beam_pipeline.tokenization.normalization import RUST_SPACE

_NUMERIC_BYTES = frozenset("²³¹¼½¾".encode("latin-1"))
_PUNCTUATION = {"type": "Punctuation", "behavior": "Contiguous"}
_THREE_DIGITS = {
    "type": "Split",
    "pattern": {"Regex": "[0-9][0-9][0-9]"},
    "behavior": "Isolated",
    "invert": False,
}


def split_around_bytes(parts: Sequence[Mapping]) -> Callable[[str], list[str]] | None:
    """Returns a function that splits text before GPT-2's pattern, so that the pieces are those of these components.

    Returns:
        A function that may return empty pieces. None if the components are not those of Falcon.
    """
    if [part["type"] for part in parts] != ["Punctuation", "ByteLevel", "Digits", "Split"]:
        return None
    punctuation, byte_level, digits, split = parts
    if (
        (punctuation, split) != (_PUNCTUATION, _THREE_DIGITS)
        or byte_level["add_prefix_space"]
        or not byte_level["use_regex"]
    ):
        return None
    return _splitter("[0-9]" if digits["individual_digits"] else "[0-9]{1,3}")


def is_split_otherwise(char: str) -> bool:
    """Determines whether text with this character may be split differently than by `split_around_bytes`."""
    return not _NUMERIC_BYTES.isdisjoint(char.encode()) or _is_punctuation(char) != (
        len(_tokenizers_punctuation().pre_tokenize_str(f"a{char}a")) == 3
    )


@functools.cache
def _tokenizers_punctuation() -> Punctuation:
    return Punctuation("isolated")


def _is_punctuation(char: str) -> bool:
    return char in "$+<=>^`|~" or (char < "\U00010000" and unicodedata.category(char)[0] == "P")


@functools.cache
def _splitter(digits: str) -> Callable[[str], list[str]]:
    marks = "".join(map(re.escape, filter(_is_punctuation, map(chr, range(0x10000)))))
    # GPT-2's pattern keeps the last white space before a word apart from the white space before it.
    return re.compile(f"([{marks}]+|[{RUST_SPACE}](?=[0-9])|{digits})").split
