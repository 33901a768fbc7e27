"""Escapes text of unknown origin, so that it is safe to display in a terminal, a log and a page."""

from __future__ import annotations

import re

# Control characters except newline and tab, characters that reorder or hide text, and lone surrogates. A terminal would
# interpret them, and a page would not show what is in the data.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_MESSAGE_LENGTH = 2000  # about a screen of 80 columns


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Escapes control characters, and others that a terminal or a page would not show, as `\x1b`, `\u202e`….

    Args:
        text: Any text, trusted or not.
        one_line: Whether to write newlines and tabs as `\n` and `\t`, too.
    """
    if one_line:
        text = text.replace("\n", r"\n").replace("\t", r"\t")
    return _UNSAFE.sub(_escape, text)


def excerpt(text: str, max_chars: int = 300) -> str:
    """Returns a text for a message: escaped, in one line, and shortened to `max_chars` characters."""
    shown = visible(text[: max_chars + 1], one_line=True)
    return shown if len(shown) <= max_chars else shown[:max_chars] + "…"


def message(text: str) -> str:
    """Returns a message for a terminal or a log, whatever it quotes: escaped, and not longer than a screen.

    A text that is too long loses its middle, since a message begins with its place and ends with the remedy. All lines
    but the first are indented, so that no quoted name can imitate a message.
    """
    return _shortened(visible(_shortened(text))).replace("\n", "\n    ")


def _shortened(text: str) -> str:
    half = _MESSAGE_LENGTH // 2
    return text if len(text) <= _MESSAGE_LENGTH else f"{text[:half]} […] {text[-half:]}"


def _escape(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
