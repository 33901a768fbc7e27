"""Languages that do not separate words: in normalized texts, each character of Chinese and Japanese is a word.

Other such scripts, like Thai, separate phrases. Their phrases remain words.
"""

from __future__ import annotations

import re

# In UTF-8: U+3040 to U+30FF, U+31C0 to U+31FF, U+3400 to U+9FFF and U+20000 to U+32FFF.
_CHARACTER = re.compile(
    rb"\xe3[\x81-\x83\x87\x90-\xbf][\x80-\xbf]|[\xe4-\xe9][\x80-\xbf]{2}|\xf0[\xa0-\xb2][\x80-\xbf]{2}"
)
_OTHER_BYTES = bytes({*range(256)} - {*range(0xE3, 0xEA), 0xF0})


def separate(data: bytes) -> bytes:
    r"""Separates the characters of Chinese and Japanese words in what `normalize_texts` returns.

    >>> separate("tea 茶道 \n".encode()).decode().split()
    ['tea', '茶', '道']
    """
    if not _may_have(data):
        return data
    lines = data.splitlines(keepends=True)
    return b"".join(_CHARACTER.sub(rb" \g<0> ", line) if _may_have(line) else line for line in lines)


def separate_word(word: str) -> list[str]:
    """Returns the words of which `separate` makes a normalized word."""
    return separate(word.encode()).decode().split()


def _may_have(data: bytes) -> bool:
    """Returns whether some byte begins such a character. This is much faster than the regular expression."""
    return bool(data.translate(None, _OTHER_BYTES))
