"""The libraries behind the fast engines, each with the characters on which it is not exact."""

from __future__ import annotations

import json
import re
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline import memory
from beam_pipeline.tokenization.characters import CODES
from beam_pipeline.tokenization.hf import encode_flat
from beam_pipeline.tokenization.normalization import LONGEST_WORD
from beam_pipeline.tokenization.token_arrays import ranges
from beam_pipeline.tokenization.tokenizer_parts import (
    BYTE_LEVEL,
    SENTENCEPIECE,
    UNIGRAM,
    WORDPIECE,
    TokenizerParts,
    UnsupportedComponent,
)

# The ids of several texts (uint32 [tokens]) and how many each text has (int64 [texts]).
Flat = tuple[np.ndarray, np.ndarray]

# Large blocks of characters that all behave alike, Chinese characters and Korean syllables: only a few are probed.
_UNIFORM_BLOCKS = ((0x3400, 0x9FF0), (0xAC00, 0xD7A4))

# gigatoken caches every distinct word, at about 170 bytes each, and cannot empty its cache. If the process has grown by
# this many bytes since the tokenizer was loaded, it is loaded again.
_MAX_GROWTH = 256 << 20


class Core(Protocol):
    """A library that encodes normalized pieces of text."""

    name: str
    longest: int
    """Maximum length of a piece in characters; at most `LONGEST_WORD`."""

    def encode(self, pieces: Sequence[str]) -> Flat:
        """Returns the ids of all pieces (uint32 [tokens]) and how many each piece has (int64 [pieces])."""

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Returns the characters on which it may differ from `exact`: bool [0x110000]; None if there are none."""


class GigatokenCore:
    """The library gigatoken: byte-level BPE, and BPE with byte fallback."""

    name = "gigatoken"
    longest = LONGEST_WORD

    def __init__(self, parts: TokenizerParts, threads: int):
        if parts.kind not in (BYTE_LEVEL, SENTENCEPIECE):
            raise UnsupportedComponent(f"gigatoken supports BPE only, and this is a {parts.kind} tokenizer")
        self._json = json.dumps(parts.core)
        self._kind = parts.kind
        self._parallel = threads > 1
        try:
            self._load()
        except Exception as error:  # the library raises exceptions of many types
            raise UnsupportedComponent(f"gigatoken cannot load it: {str(error).splitlines()[0]}") from error

    def _load(self) -> None:
        import gigatoken

        self._tokenizer = gigatoken.Tokenizer.from_json(self._json)
        self._memory = memory.private_bytes()

    def _limit_cache(self) -> None:
        if self._memory is not None and memory.private_bytes() > self._memory + _MAX_GROWTH:
            self._load()  # other threads finish with the old one

    def encode(self, pieces: Sequence[str]) -> Flat:
        self._limit_cache()
        layout = self._tokenizer.encode_batch(list(pieces), parallel=self._parallel).layout
        ids = np.asarray(layout.content.data)
        return ids, np.diff(np.asarray(layout.offsets.data).astype(np.int64, copy=False))

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Characters newer than this Python's Unicode: gigatoken may treat them as letters, `tokenizers` does not."""
        if self._kind == SENTENCEPIECE:  # its splits do not depend on Unicode categories
            return None
        return np.array([unicodedata.category(chr(code)) == "Cn" for code in range(CODES)])


class TokieCore:
    """The library tokie: Unigram and WordPiece."""

    name = "tokie"
    # tokie cuts words of more than 64 KiB, and a character has at most 4 bytes.
    longest = 16_000

    def __init__(self, parts: TokenizerParts, threads: int):
        core = parts.core
        if parts.kind not in (UNIGRAM, WORDPIECE):
            raise UnsupportedComponent(
                f"tokie supports Unigram and WordPiece only, and this is a {parts.kind} tokenizer"
            )
        self._alphabet = None
        if parts.kind == UNIGRAM:
            if core["model"].get("unk_id") is None:
                raise UnsupportedComponent("tokie needs an unknown token")
            if any(re.fullmatch("<0x[0-9A-Fa-f]{2}>", piece) for piece, _ in core["model"]["vocab"]):
                raise UnsupportedComponent("tokie interprets pieces such as <0x0A> as bytes")
            self._alphabet = [piece for piece, _ in core["model"]["vocab"] if len(piece) == 1]
        else:
            normalizer = core["normalizer"]
            if normalizer["strip_accents"] not in (None, normalizer["lowercase"]):
                raise UnsupportedComponent("tokie strips accents if and only if it lower-cases")
            if core["model"]["max_input_chars_per_word"] != 100:
                raise UnsupportedComponent("tokie's maximum word length is fixed to 100 characters")
        import tokie

        split = core["pre_tokenizer"]
        if split and split["type"] == "Metaspace" and split["prepend_scheme"] == "first":
            # Equivalent for texts without added tokens, and tokie is twice as fast with it.
            core = {**core, "pre_tokenizer": {**split, "prepend_scheme": "always"}}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_text(json.dumps(core), encoding="utf-8")
            try:
                self._tokenizer = tokie.Tokenizer.from_json(str(path))
            except Exception as error:  # the library raises exceptions of many types
                raise UnsupportedComponent(f"tokie cannot load it: {error}") from error

    def encode(self, pieces: Sequence[str]) -> Flat:
        ids, lengths = self._tokenizer.encode_batch_flat(list(pieces), add_special_tokens=False)
        return ids, lengths.astype(np.int64)

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Returns the characters that tokie is not exact on.

        Unigram: all characters outside of the model's alphabet, since tokie scores the unknown piece differently.
        WordPiece: characters that tokie normalizes or splits differently. They depend on Unicode versions, so they are
        found by encoding them with both libraries.
        """
        found = np.ones(CODES, bool)
        if self._alphabet is not None:
            found[[ord(char) for char in self._alphabet]] = False
            found[[ord(" "), ord("▁")]] = False
            return found
        uniform = [range(*block) for block in _UNIFORM_BLOCKS]
        codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]  # no surrogates
        codes = [code for code in codes if code % 64 == 0 or not any(code in block for block in uniform)]
        texts = [f"a{chr(code)}b" for code in codes]
        found[codes] = _differing(encode_flat(exact, texts), self.encode(texts))
        for block in uniform:  # a block is inexact if any of its probed characters is
            found[block] = found[block[0] // 64 * 64 + 64 : block[-1] : 64].any()
        return found


def _differing(left: Flat, right: Flat) -> np.ndarray:
    """Returns bool [texts]: which texts have different ids in the two results."""
    differ = left[1] != right[1]
    same = np.flatnonzero(~differ)
    starts = [np.cumsum(lengths) - lengths for _, lengths in (left, right)]
    sizes = left[1][same]
    pairs = [ids[ranges(start[same], sizes)] for (ids, _), start in zip((left, right), starts, strict=True)]
    differ[np.repeat(same, sizes)[pairs[0] != pairs[1]]] = True
    return differ


CORES: Mapping[str, type[GigatokenCore] | type[TokieCore]] = {"gigatoken": GigatokenCore, "tokie": TokieCore}
