"""Engines that are many times faster than HF's and give the same ids. HF encodes what they are not exact on.

Texts are normalized outside of the engine, and cut where the tokenizer permits it. Pieces with a character that the
engine is not exact on are encoded by HF, and cached. A text that contains an added token is encoded by HF as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.cores import Core, Flat
from beam_pipeline.tokenization.hf import encode_flat, reference_tokenizer
from beam_pipeline.tokenization.normalization import cut, last_match
from beam_pipeline.tokenization.token_arrays import ranges
from beam_pipeline.tokenization.tokenizer_parts import UNIGRAM, WORDPIECE, TokenizerParts

_MAX_CACHED_PIECES = 1 << 18
_MAX_CACHED_CHARS = 64


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
