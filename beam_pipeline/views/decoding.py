"""Decodes ids into text that is safe to display, for `inspect` and the report."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers.decoders import DecodeStream

from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.byte_level import byte_characters
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer
from tokenmill_reader.format.json_text import parse_json

_MAX_GROWTH = 64  # a foreign tokenizer could make a row's text fill the memory
_BYTES = {character: byte for byte, character in byte_characters().items()}
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")


@contextlib.contextmanager
def _decoding_errors() -> Iterator[None]:
    """Raises DataError for the library's errors and panics."""
    try:
        with library_errors():
            yield
    except EncodingError as error:
        raise DataError(
            f"the dataset's tokenizer.json cannot decode its rows: {error}; replace it with the tokenizer that made "
            "the dataset"
        ) from error


@dataclass(frozen=True)
class DecodedPiece:
    """One or more tokens of a row, and their text.

    A piece has several tokens if only together they form a character, as in byte-level tokenizers.
    """

    first: int
    """Position of the first token."""
    end: int
    """Position after the last token."""
    text: str


class TextDecoder:
    """Decodes rows. Special tokens are shown as their names.

    All methods raise DataError if the tokenizer cannot decode its tokens.
    """

    def __init__(self, tokenizer_json: str):
        self._tokenizer = load_tokenizer(tokenizer_json).tokenizer
        decoder = self._tokenizer.decoder  # its state is JSON
        state = b"null" if decoder is None else decoder.__getstate__()
        self._is_byte_level = b'"ByteLevel"' in state
        growth = _growth(parse_json(state))
        if growth > _MAX_GROWTH:
            raise ValueError(f"its decoder makes texts up to {growth:,.0f} times as long")

    @_decoding_errors()
    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row."""
        return self._tokenizer.decode_batch([list(row) for row in rows], skip_special_tokens=False)

    @_decoding_errors()
    def text(self, row: Sequence[int]) -> str:
        """Returns the text of a row, in this thread."""
        return self._tokenizer.decode(list(row), skip_special_tokens=False)

    def token(self, token_id: int) -> str:
        """Returns the token as it is in the vocabulary, or its id in angle brackets if it is not."""
        token = self._tokenizer.id_to_token(token_id)
        return f"<{token_id}>" if token is None else token

    @_decoding_errors()
    def label(self, token_id: int) -> str:
        """Returns the token for lists of tokens, with visible spaces.

        Byte-level vocabularies write a space as Ġ and a newline as Ċ. Here they are ␣ and a newline. A token that is a
        part of a character only is returned as it is in the vocabulary.
        """
        text = self._tokenizer.decode([token_id], skip_special_tokens=False) if self._is_byte_level else ""
        return self.token(token_id) if not text or "\ufffd" in text else text.replace(" ", "␣")

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token, also if they are a part of a character only."""
        token = self.token(token_id)
        if self._is_byte_level and _BYTES.keys() >= set(token):
            return bytes(map(_BYTES.get, token))
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.encode(errors="surrogatepass")

    @_decoding_errors()
    def pieces(self, ids: Sequence[int]) -> list[DecodedPiece]:
        """Divides a row into tokens with their texts. The texts, concatenated, are the row's text."""
        stream = DecodeStream(skip_special_tokens=False)
        pieces: list[DecodedPiece] = []
        start = 0
        for index, token_id in enumerate(ids):
            try:
                text = stream.step(self._tokenizer, int(token_id))
            except Exception:  # the library raises plain Exception if a token changes the preceding text
                text = self.token(int(token_id))
                stream = DecodeStream(skip_special_tokens=False)
            if text is not None:
                pieces.append(DecodedPiece(start, index + 1, text))
                start = index + 1
        if start < len(ids):  # the row ends within a character
            remaining_ids = list(map(int, ids[start:]))
            text = self._tokenizer.decode(remaining_ids, skip_special_tokens=False)
            pieces.append(DecodedPiece(start, len(ids), text))
        return pieces


def _growth(decoder: Any) -> float:
    """Returns the largest factor by which a decoder's replacements can lengthen a text."""
    if not isinstance(decoder, dict):
        return 1.0
    if decoder.get("type") == "Replace":
        pattern = decoder["pattern"].get("String")
        # An expression, like the empty string, may match between all characters.
        return max(1.0, len(decoder["content"]) / len(pattern)) if pattern else 1.0 + len(decoder["content"])
    return math.prod(map(_growth, decoder.get("decoders", [])))
