"""Escapes text of unknown origin, so that it is safe to display in a terminal, a log and a page."""

from __future__ import annotations

import re

# Control characters except newline and tab, characters that reorder or hide text, and lone surrogates. A terminal would
# interpret them, and a page would not show what is in the data.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Escapes control characters, and others that a terminal or a page would not show, as `\x1b`, `\u202e`….

    Args:
        text: Any text, trusted or not.
        one_line: Whether to write newlines and tabs as `\n` and `\t`, too.
    """
    if one_line:
        text = text.replace("\n", r"\n").replace("\t", r"\t")
    return _UNSAFE.sub(_escape, text)


def excerpt(text: str, most: int = 300) -> str:
    """Returns a text for a message: escaped, in one line, and shortened to `most` characters."""
    shown = visible(text[: most + 1], one_line=True)
    return shown if len(shown) <= most else shown[:most] + "…"


def _escape(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
