"""Decodes ids into text that is safe to display, for `inspect` and the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers.decoders import DecodeStream

from beam_pipeline.tokenization.tokenizer_json import load_tokenizer

# Control characters except newline and tab, characters that reorder or hide text, and lone surrogates. A terminal would
# interpret them, and a page would not show what is in the data.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class Piece:
    """One or more tokens of a row, and their text.

    A piece has several tokens if only together they form a character, as in byte-level tokenizers.
    """

    first: int
    """Position of its first token."""
    end: int
    """Position after its last token."""
    text: str


class RowDecoder:
    """Decodes rows. Special tokens are shown as their names."""

    def __init__(self, tokenizer_json: str):
        self._tokenizer = load_tokenizer(tokenizer_json).tokenizer
        decoder = self._tokenizer.decoder  # its state is JSON
        self._is_byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row."""
        return self._tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """Returns the token as it is in the vocabulary, or its id in angle brackets if it is not."""
        token = self._tokenizer.id_to_token(token_id)
        return f"<{token_id}>" if token is None else token

    def label(self, token_id: int) -> str:
        """Returns the token for lists of tokens, where a reader must see its spaces.

        Byte-level vocabularies write a space as Ġ and a newline as Ċ. Here they are ␣ and a newline. A token that is a
        part of a character only is returned as it is in the vocabulary.
        """
        text = self._tokenizer.decode([token_id], skip_special_tokens=False) if self._is_byte_level else ""
        return self.token(token_id) if not text or "\ufffd" in text else text.replace(" ", "␣")

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Returns the row's tokens with their texts, which together are the row's text."""
        stream = DecodeStream(skip_special_tokens=False)
        pieces: list[Piece] = []
        first = 0
        for index, token_id in enumerate(ids):
            try:
                text = stream.step(self._tokenizer, int(token_id))
            except Exception:  # the library raises plain Exception if a token changes the preceding text
                text = self.token(int(token_id))
                stream = DecodeStream(skip_special_tokens=False)
            if text is not None:
                pieces.append(Piece(first, index + 1, text))
                first = index + 1
        if first < len(ids):  # the row ends within a character
            rest = [int(token_id) for token_id in ids[first:]]
            pieces.append(Piece(first, len(ids), self._tokenizer.decode(rest, skip_special_tokens=False)))
        return pieces


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Escapes control characters, and others that a terminal or a page would not show, as `\x1b`, `\u202e`….

    Args:
        text: Any text, trusted or not.
        one_line: Whether to write newlines and tabs as `\n` and `\t`, too.
    """
    if one_line:
        text = text.replace("\n", r"\n").replace("\t", r"\t")
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
