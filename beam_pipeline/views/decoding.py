"""Ids → text that is safe to show: what `inspect` and the report print of a dataset's rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# Control characters but newline and tab, those that reorder or hide text, and lone surrogates: a terminal would obey
# them, and a page would show something else than what is there.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class Piece:
    """Some tokens of a row, mostly one, and the text they stand for.

    Several tokens share a piece where only together they make a character, as in byte-level tokenizers.

    Attributes:
      first, end: the half-open range of the tokens' positions.
      text: what they add to the text.
    """

    first: int
    end: int
    text: str


class RowDecoder:
    """Decodes rows; special tokens are shown by their names.

    Args:
      tokenizer_json: the text of the tokenizer's `tokenizer.json`.
    """

    def __init__(self, tokenizer_json: str):
        self._tokenizer = Tokenizer.from_str(tokenizer_json)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row."""
        return self._tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it."""
        token = self._tokenizer.id_to_token(token_id)
        return f"<{token_id}>" if token is None else token

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """The row's tokens, each with its text; joined, the texts are the row's text."""
        stream = DecodeStream(skip_special_tokens=False)
        pieces: list[Piece] = []
        first = 0
        for index, token_id in enumerate(ids):
            try:
                text = stream.step(self._tokenizer, int(token_id))
            except Exception:  # the library raises plain Exception where a token changes the text before it
                text = self.token(int(token_id))
                stream = DecodeStream(skip_special_tokens=False)
            if text is not None:
                pieces.append(Piece(first, index + 1, text))
                first = index + 1
        if first < len(ids):  # a character that the row's end cuts
            rest = [int(token_id) for token_id in ids[first:]]
            pieces.append(Piece(first, len(ids), self._tokenizer.decode(rest, skip_special_tokens=False)))
        return pieces


def visible(text: str, *, one_line: bool = False) -> str:
    r"""The text with control characters, and others that a terminal or a page would not show, as `\x1b`, `\u202e`….

    Args:
      text: anything, from anywhere.
      one_line: whether newlines and tabs are written as `\n` and `\t`, too.
    """
    if one_line:
        text = text.replace("\n", r"\n").replace("\t", r"\t")
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
