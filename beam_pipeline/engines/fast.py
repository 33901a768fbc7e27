"""Engines that are many times faster than HF's and give the same ids. HF encodes what they are not exact on.

A text is split at the added tokens in it, and normalized outside of the engine. Words with a character that the engine
is not exact on are encoded by HF, and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.engines.cores import Core
from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.engines.hf import encode_flat, reference_tokenizer
from beam_pipeline.engines.literals import Place, Sections, StringSet, cut_at
from beam_pipeline.engines.token_arrays import ranges
from beam_pipeline.engines.tokenizer_parts import UNIGRAM, WORDPIECE, TokenizerParts
from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.library_errors import Flat
from beam_pipeline.tokenization.normalization import cut, last_match
from beam_pipeline.tokenization.tokenizer_json import with_model_of

_MAX_CACHED_PIECES = 1 << 18
_MAX_CACHED_CHARS = 64

# Why a piece is left to HF.
_CHARACTERS, _STRINGS = "rare characters", "rare pieces"
_LITERALS, _LONG = "special tokens in text", "very long words"

_Left = list[tuple[str, int, str]]
"""Pieces that are left to HF: (reason, number of the document, text)."""

_Encode = Callable[[list[str], np.ndarray, _Left], Flat]
"""Encodes texts, given the number of the document of each."""


class FastEngine:
    """An engine around a fast library. See `Engine`.

    Args:
        core: The library, which encodes the pieces that it is exact on.
        parts: The tokenizer's parts.
        tokenizer: The parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: See `Engine`.
    """

    reason = None

    def __init__(self, core: Core, parts: TokenizerParts, tokenizer: Mapping, *, parse_special_tokens: bool):
        self.name = core.name
        self.fallbacks = Fallbacks()
        self._core = core
        self._parts = parts
        self._tokenizer = tokenizer
        self._parse_special_tokens = parse_special_tokens
        self._inexact_strings = StringSet(core.inexact_strings)
        self._inexact_reason = _STRINGS if core.is_exact else _CHARACTERS
        self._cache: dict[str, np.ndarray] = {}

    @cached_property
    def reference(self) -> Tokenizer:
        """See `Engine`. Made when it is needed first, since loading it takes longer than the core."""
        return reference_tokenizer(self._tokenizer, parse_special_tokens=self._parse_special_tokens)

    @cached_property
    def _exact(self) -> Tokenizer:
        """HF's tokenizer for normalized pieces."""
        return with_model_of(self.reference, self._parts.exact)

    @cached_property
    def _inexact(self) -> CharacterSet:
        return CharacterSet(lambda chars: self._core.inexact(chars, lambda: self._exact))

    def encode_batch(self, texts: list[str]) -> Flat:
        left: _Left = []
        flat = self._encode_texts(texts, left)
        self.fallbacks.add(left)
        return flat

    def _encode_texts(self, texts: list[str], left: _Left) -> Flat:
        parts, owners = self._parts, np.arange(len(texts))
        sections = parts.literals.split(texts) if parts.uniform else None
        if sections is not None:
            return self._encode_split(sections, owners, self._encode_sections, left)
        found, whole = parts.literals.find(texts)
        if found and not parts.uniform:
            whole, found = sorted({*whole, *found}), {}
        if not whole:
            return self._around(found, texts, owners, self._encode_sections, left)
        others = np.delete(owners, whole)
        found = {int(np.searchsorted(others, index)): places for index, places in found.items()}
        left += [(_LITERALS, index, texts[index]) for index in whole]
        rest = [texts[index] for index in others.tolist()]
        flats = [
            encode_flat(self.reference, [texts[index] for index in whole]),
            self._around(found, rest, others, self._encode_sections, left),
        ]
        return _interleave(np.concatenate([whole, others]).astype(np.int64), flats)

    def _encode_sections(self, texts: list[str], owners: np.ndarray, left: _Left) -> Flat:
        """Encodes the texts between added tokens. `owners` has the number of the document of each."""
        for step in self._parts.normalize:
            texts = step(texts)
        sections = self._parts.normalized_literals.split(texts)
        if sections is not None:
            return self._encode_split(sections, owners, self._encode_normalized, left)
        found, _ = self._parts.normalized_literals.find(texts)
        return self._around(found, texts, owners, self._encode_normalized, left)

    def _around(
        self,
        found: Mapping[int, Sequence[Place]],
        texts: list[str],
        owners: np.ndarray,
        encode: _Encode,
        left: _Left,
    ) -> Flat:
        """Encodes texts that contain added tokens at the places `found`; `encode` encodes the text between these."""
        if not found:
            return encode(texts, owners, left)
        return self._encode_split(cut_at(texts, found), owners, encode, left)

    def _encode_split(self, sections: Sections, owners: np.ndarray, encode: _Encode, left: _Left) -> Flat:
        flats = [
            encode(sections.texts, owners[sections.owners], left),
            (sections.tokens, np.ones(len(sections.tokens), np.int64)),
        ]
        ids, lengths = _interleave(sections.at, flats)
        return ids, _sums(lengths, sections.counts)

    def _encode_normalized(self, texts: list[str], owners: np.ndarray, left: _Left) -> Flat:
        for step in self._parts.mark:
            texts = step(texts)
        places = self._inexact_places(texts)
        longest = self._core.longest
        if not places and max(map(len, texts), default=0) <= longest:
            return self._encode_exact(texts)
        pieces: list[str] = []
        inexact: list[int] = []  # indices of the pieces that HF encodes
        counts = np.ones(len(texts), np.int64)  # pieces per text
        for index, text in enumerate(texts):
            if index not in places and len(text) <= longest:
                pieces.append(text)
                continue
            before = len(pieces)
            for piece, exact in self._split(text, places.get(index, ())):
                for part in cut(piece, self._parts.cuts, longest) if len(piece) > longest else (piece,):
                    if not exact or len(part) > longest:
                        inexact.append(len(pieces))
                        left.append((_LONG if exact else self._inexact_reason, int(owners[index]), part))
                    pieces.append(part)
            counts[index] = len(pieces) - before
        ids, lengths = self._encode_pieces(pieces, inexact)
        return ids, _sums(lengths, counts)

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
        places = {} if self._core.is_exact else self._inexact.places(texts)
        others = [self._core.inexact_places(texts)]
        if self._inexact_strings:
            others.append(self._inexact_strings.places(texts))
        for index, found in chain.from_iterable(other.items() for other in others):
            places[index] = sorted((*places.get(index, ()), *found))
        return places

    def _encode_pieces(self, pieces: list[str], inexact: list[int]) -> Flat:
        if not inexact:
            return self._encode_exact(pieces)
        others = np.delete(np.arange(len(pieces)), inexact)
        flats = [
            self._encode_with_hf([pieces[index] for index in inexact]),
            self._encode_exact([pieces[index] for index in others.tolist()]),
        ]
        return _interleave(np.concatenate([inexact, others]).astype(np.int64), flats)

    def _encode_exact(self, pieces: list[str]) -> Flat:
        """Encodes pieces with the core."""
        if self._parts.split is None:
            return self._core.encode(pieces)
        parts = [list(filter(None, self._parts.split(piece))) for piece in pieces]
        ids, lengths = self._core.encode(list(chain.from_iterable(parts)))
        return ids, _sums(lengths, np.fromiter(map(len, parts), np.int64, len(parts)))

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


def _sums(lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the sums of consecutive groups of `lengths`, of which `counts` has the sizes: int64 [groups]."""
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.cumsum(counts)]
    return np.diff(ends, prepend=0)


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
