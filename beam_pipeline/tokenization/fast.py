"""Engines that are many times faster than HF's and give the same ids. HF encodes what they are not exact on.

Texts are normalized outside of the engine, and cut where the tokenizer permits it. Pieces with a character that the
engine is not exact on are encoded by HF, and cached. A text that contains an added token is encoded by HF as a whole.
"""

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
from beam_pipeline.tokenization.characters import CODES, CharacterSet
from beam_pipeline.tokenization.hf import encode_flat, reference_tokenizer
from beam_pipeline.tokenization.normalization import LONGEST_WORD, cut, last_match
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

_MAX_CACHED_PIECES = 1 << 18
_MAX_CACHED_CHARS = 64


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


class FastEngine:
    """An engine around a fast library. See `Engine`.

    Args:
        core: The library, which encodes the pieces that it is exact on.
        parts: The tokenizer's parts.
        tokenizer: The parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: See `Engine`.
    """

    def __init__(self, core: Core, parts: TokenizerParts, tokenizer: Mapping, *, parse_special_tokens: bool):
        self.name = core.name
        self.misses = 0
        self._core = core
        self._parts = parts
        self.reference = reference_tokenizer(tokenizer, parse_special_tokens=parse_special_tokens)
        self._exact = Tokenizer.from_str(json.dumps(parts.core))
        self._literal = re.compile("|".join(map(re.escape, parts.literals)) or r"(?!)")
        self._inexact: CharacterSet | None = None
        self._probed = False
        self._cache: dict[str, np.ndarray] = {}

    def encode_batch(self, texts: list[str]) -> Flat:
        whole = self._find_literals(texts) if self._parts.literals else []
        if not whole:
            return self._encode(texts)
        self.misses += len(whole)
        others = np.delete(np.arange(len(texts)), whole)
        flats = [
            encode_flat(self.reference, [texts[index] for index in whole]),
            self._encode([texts[index] for index in others.tolist()]),
        ]
        return _interleave(np.concatenate([whole, others]).astype(np.int64), flats)

    def _find_literals(self, texts: list[str]) -> list[int]:
        """Returns the indices of the texts that contain an added token."""
        joined = "\n".join(texts)
        if not self._literal.search(joined):
            return []
        return [index for index, text in enumerate(texts) if self._literal.search(text)]

    def _encode(self, texts: list[str]) -> Flat:
        for step in self._parts.normalize:
            texts = step(texts)
        places = self._inexact_places(texts)
        longest = self._core.longest
        if not places and max(map(len, texts), default=0) <= longest:
            return self._core.encode(texts)
        pieces: list[str] = []
        inexact: list[int] = []  # indices of the pieces that HF encodes
        counts = np.ones(len(texts), np.int64)  # pieces per text
        for index, text in enumerate(texts):
            if index not in places and len(text) <= longest:
                pieces.append(text)
                continue
            before, missed = len(pieces), len(inexact)
            for piece, exact in self._split(text, places.get(index, ())):
                for part in cut(piece, self._parts.cuts, longest) if len(piece) > longest else (piece,):
                    if not exact or len(part) > longest:
                        inexact.append(len(pieces))
                    pieces.append(part)
            counts[index] = len(pieces) - before
            self.misses += len(inexact) > missed
        ids, lengths = self._encode_pieces(pieces, inexact)
        # A text ends where its last piece ends.
        ends = np.cumsum(lengths)
        ends = np.concatenate([[0], ends])[np.cumsum(counts)]
        return ids, np.diff(ends, prepend=0)

    def _split(self, text: str, places: Sequence[int]) -> list[tuple[str, bool]]:
        """Splits a text into (piece, whether the core is exact on it), given the `places` of inexact characters.

        The pieces that the core is not exact on are the words around these characters.
        """
        pieces = []
        done = 0
        for place in places:
            if place < done:
                continue
            start, end = self._word_around(text, done, place)
            if start > done:
                pieces.append((text[done:start], True))
            pieces.append((text[start:end], False))
            done = end
        if done < len(text):
            pieces.append((text[done:], True))
        return pieces

    def _word_around(self, text: str, minimum: int, place: int) -> tuple[int, int]:
        """Returns the nearest positions before and after a character at which the text can be cut."""
        # Unigram and WordPiece texts can be cut at every space, which is faster to find.
        if self._parts.kind in (UNIGRAM, WORDPIECE):
            start, end = text.rfind(" ", minimum, place), text.find(" ", place + 1)
            return max(start, minimum), len(text) if end < 0 else end
        start = last_match(self._parts.cuts, text, minimum + 1, place)
        end = self._parts.cuts.search(text, place + 1)
        return minimum if start is None else start, len(text) if end is None else end.start()

    def _inexact_places(self, texts: list[str]) -> dict[int, list[int]]:
        """Returns the positions of characters that the core is not exact on, by the index of the text."""
        if not self._probed:  # probing takes a while, so it waits for the first text
            self._probed = True
            codes = self._core.inexact(self._exact)
            self._inexact = None if codes is None else CharacterSet(codes)
        return self._inexact.places(texts) if self._inexact else {}

    def _encode_pieces(self, pieces: list[str], inexact: list[int]) -> Flat:
        if not inexact:
            return self._core.encode(pieces)
        others = np.delete(np.arange(len(pieces)), inexact)
        flats = [
            self._encode_with_hf([pieces[index] for index in inexact]),
            self._core.encode([pieces[index] for index in others.tolist()]),
        ]
        return _interleave(np.concatenate([inexact, others]).astype(np.int64), flats)

    def _encode_with_hf(self, pieces: list[str]) -> Flat:
        """Encodes pieces with HF. Each distinct piece is encoded once, since the same words occur again and again."""
        if len(self._cache) > _MAX_CACHED_PIECES:
            self._cache.clear()
        known = {piece: self._cache.get(piece) for piece in pieces}
        new = [piece for piece, ids in known.items() if ids is None]
        if new:
            ids, lengths = encode_flat(self._exact, new)
            for piece, piece_ids in zip(new, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                known[piece] = piece_ids
                if len(piece) <= _MAX_CACHED_CHARS:
                    self._cache[piece] = piece_ids
        found = [known[piece] for piece in pieces]
        return np.concatenate(found), np.fromiter(map(len, found), np.int64, len(found))


def _interleave(index: np.ndarray, flats: Sequence[Flat]) -> Flat:
    """Concatenates results, ordered by text.

    Args:
        index: integers [texts], the position in the output of each text of `flats`, in their order.
        flats: The results.

    Returns:
        The ids and lengths of all texts, sorted by `index`.
    """
    ids = np.concatenate([ids for ids, _ in flats])
    lengths = np.concatenate([lengths for _, lengths in flats])
    order = np.argsort(index, kind="stable")
    starts = np.cumsum(lengths) - lengths
    return ids[ranges(starts[order], lengths[order])], lengths[order]


CORES: Mapping[str, type[GigatokenCore] | type[TokieCore]] = {"gigatoken": GigatokenCore, "tokie": TokieCore}
