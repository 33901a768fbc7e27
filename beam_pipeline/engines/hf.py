"""Hugging Face's `tokenizers`: the reference for all other engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.engines.literals import StringSet
from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.engines.tokenizer_parts import TokenizerParts, split_tokenizer
from beam_pipeline.tokenization.normalization import cut
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent, dump_tokenizer, with_model_of

# An encoding takes about 40 bytes of memory per byte of text, so batches are small and long texts are cut.
_BATCH_CHARS = 1 << 20
_MAX_TEXT_CHARS = 1 << 16


def reference_tokenizer(tokenizer: Mapping, *, parse_special_tokens: bool) -> Tokenizer:
    """Makes HF's tokenizer, without truncation and padding.

    Args:
        tokenizer: A parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: Whether special tokens in a text are parsed; otherwise they are plain text.
    """
    reference = Tokenizer.from_str(dump_tokenizer(tokenizer))
    reference.encode_special_tokens = not parse_special_tokens
    reference.no_truncation()
    reference.no_padding()
    return reference


def encode_flat(tokenizer: Tokenizer, texts: Sequence[str]) -> FlatIds:
    """Returns the ids of all texts (uint32 [tokens]) and the number in each text (int64 [texts])."""
    parts = [_encode(tokenizer, batch) for batch in batches(texts)]
    if not parts:
        return np.empty(0, np.uint32), np.empty(0, np.int64)
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([lengths for _, lengths in parts])


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> FlatIds:
    ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.uint32, int(lengths.sum())), lengths


def batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yields groups of consecutive texts with at most a megabyte of characters, or a single longer text."""
    start = chars = 0
    for number, text in enumerate(texts):
        if chars and chars + len(text) > _BATCH_CHARS:
            yield texts[start:number]
            start, chars = number, 0
        chars += len(text)
    if start < len(texts):
        yield texts[start:]


class HFEngine:
    """The engine `hf`. See `Engine`.

    Args:
        tokenizer: The parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: See `Engine`.
        reason: Why no fast engine supports the tokenizer; None if the user chose this one.
    """

    name = "hf"
    reference = None

    def __init__(self, tokenizer: Mapping, *, parse_special_tokens: bool, reason: str | None = None):
        self.reason = reason
        self.fallbacks = Fallbacks()
        self._tokenizer = reference_tokenizer(tokenizer, parse_special_tokens=parse_special_tokens)
        self._parts: TokenizerParts | None
        try:
            self._parts = split_tokenizer(tokenizer, parse_special_tokens)
            self._literals = StringSet(self._parts.literals.contents)
            self._normalized_literals = StringSet(self._parts.normalized_literals.contents)
        except (UnsupportedComponent, RecursionError):  # recursion: an added token of hundreds of characters
            self._parts = None  # where a text can be cut is unknown, so texts are encoded as a whole
        else:
            if self._parts.cuts is None:
                self._parts = None
            else:
                self._core = with_model_of(self._tokenizer, self._parts.core)

    def encode_batch(self, texts: Sequence[str]) -> FlatIds:
        flat = self._encode_batch(texts)
        if self.reason is not None:
            self.fallbacks.add((self.reason, number, text) for number, text in enumerate(texts))
        return flat

    def _encode_batch(self, texts: Sequence[str]) -> FlatIds:
        if self._parts is None or max(map(len, texts), default=0) <= _MAX_TEXT_CHARS:
            return encode_flat(self._tokenizer, texts)
        parts = [
            self._encode_long(text) if len(text) > _MAX_TEXT_CHARS else self._encode_one(text)
            for text in texts
        ]
        return np.concatenate(parts), np.fromiter(map(len, parts), np.int64, len(parts))

    def _encode_one(self, text: str) -> np.ndarray:
        return encode_flat(self._tokenizer, [text])[0]

    def _encode_long(self, text: str) -> np.ndarray:
        """Encodes a text piece by piece. 100 MB of text at once would need many GB of memory."""
        parts, texts = self._parts, [text]
        if any(self._literals.find(texts)):
            return self._encode_one(text)
        for step in parts.normalize:
            texts = step(texts)
        if any(self._normalized_literals.find(texts)):
            return self._encode_one(text)
        for step in parts.mark:
            texts = step(texts)
        return encode_flat(self._core, cut(texts[0], parts.cuts, _MAX_TEXT_CHARS))[0]
