"""Languages that do not separate words: in normalized texts, each character of Chinese and Japanese is a word.

Other such scripts, like Thai, separate phrases. Their phrases remain words.
"""

from __future__ import annotations

import re

_CHARACTER = re.compile(
    "([\u3041-\u3096\u30a1-\u30fa\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U000323af])"
)
# The first byte of each of these characters in UTF-8.
_MAY_HAVE = re.compile(rb"[\xe3-\xe9\xf0]")


def separate(data: bytes) -> bytes:
    """Separates the characters of Chinese and Japanese words in what `normalize_texts` returns.

    >>> separate("tea 茶道 \\n".encode()).decode().split()
    ['tea', '茶', '道']
    """
    if not _MAY_HAVE.search(data):
        return data
    return _CHARACTER.sub(r" \1 ", data.decode()).encode()


def separate_word(word: str) -> list[str]:
    """Returns the words of which `separate` makes a normalized word."""
    return _CHARACTER.sub(r" \1 ", word).split()
