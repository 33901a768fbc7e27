"""The engines that are many times as fast as HF's, and the same ids: what they cannot do just so goes to HF.

A text is normalized outside of the engine, and cut where the tokenizer allows it. A piece with a character that the
engine is not exact on is encoded by HF, and remembered. A text in which an added token stands goes to HF as a whole.
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

Flat = tuple[np.ndarray, np.ndarray]

# Long blocks of characters that are all alike: Chinese ones, and Korean syllables. Of these a few are tried.
_ALIKE = ((0x3400, 0x9FF0), (0xAC00, 0xD7A4))

_MOST_REMEMBERED = 1 << 18
_LONGEST_REMEMBERED = 64


class Core(Protocol):
    """A library that encodes normalized pieces of text.

    Attributes:
      longest: the longest piece it is given, in characters; at most `LONGEST_WORD`.
      inexact: bool [0x110000], the characters that it is not exact on; None where it is exact on all.
    """

    name: str
    longest: int

    def encode(self, pieces: Sequence[str]) -> Flat:
        """Returns the pieces' ids (uint32 [tokens]) and how many each has (int64 [pieces])."""

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Which characters it is not exact on (bool [0x110000]); None where it is exact on all."""


class GigatokenCore:
    """gigatoken: byte-level BPE, and BPE with byte fallback."""

    name = "gigatoken"
    longest = LONGEST_WORD

    def __init__(self, parts: TokenizerParts, threads: int):
        if parts.kind not in (BYTE_LEVEL, SENTENCEPIECE):
            raise UnsupportedComponent(f"gigatoken does BPE, and this is a {parts.kind} tokenizer")
        import gigatoken

        try:
            self._tokenizer = gigatoken.Tokenizer.from_json(json.dumps(parts.core))
        except Exception as error:  # the library raises whatever it meets
            raise UnsupportedComponent(f"gigatoken cannot load it: {str(error).splitlines()[0]}") from error
        self._kind = parts.kind
        self._parallel = threads > 1

    def encode(self, pieces: Sequence[str]) -> Flat:
        layout = self._tokenizer.encode_batch(list(pieces), parallel=self._parallel).layout
        ids = np.asarray(layout.content.data)
        return ids, np.diff(np.asarray(layout.offsets.data).astype(np.int64, copy=False))

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Characters newer than this Python's Unicode: letters to gigatoken, it may be, and to `tokenizers` not."""
        if self._kind == SENTENCEPIECE:  # splits nothing by categories
            return None
        return np.array([unicodedata.category(chr(code)) == "Cn" for code in range(CODES)])


class TokieCore:
    """tokie: Unigram and WordPiece."""

    name = "tokie"
    # It cuts words of more than 64 KiB, and a character is 4 bytes at most.
    longest = 16_000

    def __init__(self, parts: TokenizerParts, threads: int):
        core = parts.core
        if parts.kind not in (UNIGRAM, WORDPIECE):
            raise UnsupportedComponent(
                f"tokie is used for Unigram and WordPiece, and this is a {parts.kind} tokenizer"
            )
        self._alphabet = None
        if parts.kind == UNIGRAM:
            if core["model"].get("unk_id") is None:
                raise UnsupportedComponent("tokie needs an unknown token")
            if any(re.fullmatch("<0x[0-9A-Fa-f]{2}>", piece) for piece, _ in core["model"]["vocab"]):
                raise UnsupportedComponent("tokie takes pieces such as <0x0A> for bytes")
            self._alphabet = [piece for piece, _ in core["model"]["vocab"] if len(piece) == 1]
        else:
            normalizer = core["normalizer"]
            if normalizer["strip_accents"] not in (None, normalizer["lowercase"]):
                raise UnsupportedComponent("tokie strips accents where it lower-cases, and only there")
            if core["model"]["max_input_chars_per_word"] != 100:
                raise UnsupportedComponent("tokie takes words of up to 100 characters")
        import tokie

        split = core["pre_tokenizer"]
        if split and split["type"] == "Metaspace" and split["prepend_scheme"] == "first":
            # The same for a text without added tokens, and tokie is twice as fast at it.
            core = {**core, "pre_tokenizer": {**split, "prepend_scheme": "always"}}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tokenizer.json")
            path.write_text(json.dumps(core), encoding="utf-8")
            try:
                self._tokenizer = tokie.Tokenizer.from_json(str(path))
            except Exception as error:  # the library raises whatever it meets
                raise UnsupportedComponent(f"tokie cannot load it: {error}") from error

    def encode(self, pieces: Sequence[str]) -> Flat:
        ids, lengths = self._tokenizer.encode_batch_flat(list(pieces), add_special_tokens=False)
        return ids, lengths.astype(np.int64)

    def inexact(self, exact: Tokenizer) -> np.ndarray | None:
        """Unigram: characters outside of its alphabet, since it weighs the unknown piece in another way. WordPiece:
        what it normalizes or splits in another way, found by trying, since that is a matter of Unicode versions."""
        found = np.ones(CODES, bool)
        if self._alphabet is not None:
            found[[ord(char) for char in self._alphabet]] = False
            found[[ord(" "), ord("▁")]] = False
            return found
        alike = [range(*block) for block in _ALIKE]
        codes = [code for code in range(0x20000) if not 0xD800 <= code < 0xE000]
        codes = [code for code in codes if code % 64 == 0 or not any(code in block for block in alike)]
        texts = [f"a{chr(code)}b" for code in codes]
        found[codes] = _differ(encode_flat(exact, texts), self.encode(texts))
        for block in alike:
            found[block] = found[block[0] // 64 * 64 + 64 : block[-1] : 64].any()
        return found


def _differ(left: Flat, right: Flat) -> np.ndarray:
    """bool [texts]: which texts' ids are not the same."""
    differ = left[1] != right[1]
    same = np.flatnonzero(~differ)
    starts = [np.cumsum(lengths) - lengths for _, lengths in (left, right)]
    sizes = left[1][same]
    pairs = [ids[ranges(start[same], sizes)] for (ids, _), start in zip((left, right), starts, strict=True)]
    differ[np.repeat(same, sizes)[pairs[0] != pairs[1]]] = True
    return differ


class FastEngine:
    """See `Engine`.

    Args:
      core: encodes what it is exact on.
      parts: of the tokenizer.
      tokenizer: parsed, as `tokenizer_for_text` returns it.
      parse_special_tokens: see `Engine`.
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
        self._remembered: dict[str, np.ndarray] = {}

    def encode_batch(self, texts: list[str]) -> Flat:
        whole = self._with_literals(texts) if self._parts.literals else []
        if not whole:
            return self._encode(texts)
        self.misses += len(whole)
        others = np.delete(np.arange(len(texts)), whole)
        flats = [
            encode_flat(self.reference, [texts[index] for index in whole]),
            self._encode([texts[index] for index in others.tolist()]),
        ]
        return _interleave(np.concatenate([whole, others]).astype(np.int64), flats)

    def _with_literals(self, texts: list[str]) -> list[int]:
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
        inexact: list[int] = []  # the numbers of the pieces that are for HF
        counts = np.ones(len(texts), np.int64)
        for index, text in enumerate(texts):
            if index not in places and len(text) <= longest:
                pieces.append(text)
                continue
            before, missed = len(pieces), len(inexact)
            for piece, exact in self._pieces(text, places.get(index, ())):
                for part in cut(piece, self._parts.cuts, longest) if len(piece) > longest else (piece,):
                    if not exact or len(part) > longest:
                        inexact.append(len(pieces))
                    pieces.append(part)
            counts[index] = len(pieces) - before
            self.misses += len(inexact) > missed
        ids, lengths = self._encode_pieces(pieces, inexact)
        ends = np.cumsum(lengths)
        ends = np.concatenate([[0], ends])[np.cumsum(counts)]
        return ids, np.diff(ends, prepend=0)

    def _pieces(self, text: str, places: Sequence[int]) -> list[tuple[str, bool]]:
        """The text in pieces, and whether the core is exact on each: not on words with a character at `places`."""
        pieces = []
        done = 0
        for place in places:
            if place < done:
                continue
            start, end = self._around(text, done, place)
            if start > done:
                pieces.append((text[done:start], True))
            pieces.append((text[start:end], False))
            done = end
        if done < len(text):
            pieces.append((text[done:], True))
        return pieces

    def _around(self, text: str, least: int, place: int) -> tuple[int, int]:
        """The nearest places around a character where the text may be cut."""
        if self._parts.kind in (UNIGRAM, WORDPIECE):  # at each space, and this is quicker
            start, end = text.rfind(" ", least, place), text.find(" ", place + 1)
            return max(start, least), len(text) if end < 0 else end
        start = last_match(self._parts.cuts, text, least + 1, place)
        end = self._parts.cuts.search(text, place + 1)
        return least if start is None else start, len(text) if end is None else end.start()

    def _inexact_places(self, texts: list[str]) -> dict[int, list[int]]:
        """Where in which text a character stands that the core is not exact on."""
        if not self._probed:
            self._probed = True
            codes = self._core.inexact(self._exact)
            self._inexact = None if codes is None else CharacterSet(codes)
        return self._inexact.places(texts) if self._inexact else {}

    def _encode_pieces(self, pieces: list[str], inexact: list[int]) -> Flat:
        if not inexact:
            return self._core.encode(pieces)
        others = np.delete(np.arange(len(pieces)), inexact)
        flats = [
            self._encode_exactly([pieces[index] for index in inexact]),
            self._core.encode([pieces[index] for index in others.tolist()]),
        ]
        return _interleave(np.concatenate([inexact, others]).astype(np.int64), flats)

    def _encode_exactly(self, pieces: list[str]) -> Flat:
        """By HF; each piece once, since the same words come again and again."""
        if len(self._remembered) > _MOST_REMEMBERED:
            self._remembered.clear()
        known = {piece: self._remembered.get(piece) for piece in pieces}
        new = [piece for piece, ids in known.items() if ids is None]
        if new:
            ids, lengths = encode_flat(self._exact, new)
            for piece, piece_ids in zip(new, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                known[piece] = piece_ids
                if len(piece) <= _LONGEST_REMEMBERED:
                    self._remembered[piece] = piece_ids
        found = [known[piece] for piece in pieces]
        return np.concatenate(found), np.fromiter(map(len, found), np.int64, len(found))


def _interleave(index: np.ndarray, flats: Sequence[Flat]) -> Flat:
    """Joins flat arrays, the i-th of whose texts has the number `index[i]`, in the order of these numbers."""
    ids = np.concatenate([ids for ids, _ in flats])
    lengths = np.concatenate([lengths for _, lengths in flats])
    order = np.argsort(index, kind="stable")
    starts = np.cumsum(lengths) - lengths
    return ids[ranges(starts[order], lengths[order])], lengths[order]


CORES: Mapping[str, type[GigatokenCore] | type[TokieCore]] = {"gigatoken": GigatokenCore, "tokie": TokieCore}
