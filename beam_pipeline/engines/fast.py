"""An engine that is many times faster than HF's and gives the same ids. HF encodes the text on which it is not exact.

Each step cuts the text further and hands the pieces to the next one:

1. `_encode_texts` splits documents at the added tokens that are matched in text as it is.
2. `_encode_sections` normalizes the sections, and splits them at the added tokens that are matched in normalized text.
3. `_encode_normalized` marks word beginnings, and cuts out the words on which the library is not exact.
4. `_encode_pieces` encodes those words with HF, with a cache, and all other pieces with the library.

On the way back, `_interleave` puts the ids of all pieces in the order of the text, and `sums` adds up the lengths.
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
from beam_pipeline.engines.literals import Sections, StringSet, TokenSpan, cut_at
from beam_pipeline.engines.token_arrays import FlatIds, ranges, sums
from beam_pipeline.engines.tokenizer_parts import UNIGRAM, WORDPIECE, TokenizerParts
from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.normalization import cut, last_match
from beam_pipeline.tokenization.tokenizer_json import with_model_of

_MAX_CACHED_PIECES = 1 << 18
_MAX_CACHED_CHARS = 64

# Reasons why HF encodes a piece.
_CHARACTERS, _STRINGS = "rare characters", "rare pieces"
_LITERALS, _LONG_WORDS = "special tokens in text", "very long words"

_HFPieces = list[tuple[str, int, str]]
"""Pieces that HF encodes: (reason, number of the document, text)."""

_Encode = Callable[[list[str], np.ndarray, _HFPieces], FlatIds]
"""Encodes texts, given the number of each text's document. Adds the pieces that HF encodes to the list."""


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
        """See `Engine`. Loaded on first use, since it takes longer to load than the core."""
        return reference_tokenizer(self._tokenizer, parse_special_tokens=self._parse_special_tokens)

    @cached_property
    def _exact(self) -> Tokenizer:
        """HF's tokenizer for normalized pieces."""
        return with_model_of(self.reference, self._parts.exact)

    @cached_property
    def _inexact(self) -> CharacterSet:
        return CharacterSet(lambda chars: self._core.inexact(chars, lambda: self._exact))

    def encode_batch(self, texts: list[str]) -> FlatIds:
        hf_pieces: _HFPieces = []
        flat = self._encode_texts(texts, hf_pieces)
        self.fallbacks.add(hf_pieces)
        return flat

    def _encode_texts(self, texts: list[str], hf_pieces: _HFPieces) -> FlatIds:
        parts, owners = self._parts, np.arange(len(texts))
        sections = parts.literals.split(texts) if parts.uniform else None
        if sections is not None:
            return self._encode_split(sections, owners, self._encode_sections, hf_pieces)
        spans, hf_indices = parts.literals.find(texts)
        if spans and not parts.uniform:
            hf_indices, spans = sorted({*hf_indices, *spans}), {}
        if not hf_indices:
            return self._encode_around(spans, texts, owners, self._encode_sections, hf_pieces)
        fast_indices = np.delete(owners, hf_indices)
        spans = {int(np.searchsorted(fast_indices, index)): text_spans for index, text_spans in spans.items()}
        hf_pieces += [(_LITERALS, index, texts[index]) for index in hf_indices]
        fast_texts = [texts[index] for index in fast_indices.tolist()]
        flats = [
            encode_flat(self.reference, [texts[index] for index in hf_indices]),
            self._encode_around(spans, fast_texts, fast_indices, self._encode_sections, hf_pieces),
        ]
        return _interleave(np.concatenate([hf_indices, fast_indices]).astype(np.int64), flats)

    def _encode_sections(self, texts: list[str], owners: np.ndarray, hf_pieces: _HFPieces) -> FlatIds:
        """Encodes the texts between added tokens. `owners` has the number of each text's document."""
        for step in self._parts.normalize:
            texts = step(texts)
        sections = self._parts.normalized_literals.split(texts)
        if sections is not None:
            return self._encode_split(sections, owners, self._encode_normalized, hf_pieces)
        spans, _ = self._parts.normalized_literals.find(texts)
        return self._encode_around(spans, texts, owners, self._encode_normalized, hf_pieces)

    def _encode_around(
        self,
        spans: Mapping[int, Sequence[TokenSpan]],
        texts: list[str],
        owners: np.ndarray,
        encode: _Encode,
        hf_pieces: _HFPieces,
    ) -> FlatIds:
        """Encodes texts that contain added tokens at `spans`, by the index of the text; `encode` encodes the rest."""
        if not spans:
            return encode(texts, owners, hf_pieces)
        return self._encode_split(cut_at(texts, spans), owners, encode, hf_pieces)

    def _encode_split(
        self, sections: Sections, owners: np.ndarray, encode: _Encode, hf_pieces: _HFPieces
    ) -> FlatIds:
        flats = [
            encode(sections.texts, owners[sections.owners], hf_pieces),
            (sections.tokens, np.ones(len(sections.tokens), np.int64)),
        ]
        ids, lengths = _interleave(sections.indices, flats)
        return ids, sums(lengths, sections.counts)

    def _encode_normalized(self, texts: list[str], owners: np.ndarray, hf_pieces: _HFPieces) -> FlatIds:
        for step in self._parts.mark:
            texts = step(texts)
        inexact_positions = self._inexact_positions(texts)
        max_chars = self._core.max_piece_chars
        if not inexact_positions and max(map(len, texts), default=0) <= max_chars:
            return self._encode_exact(texts)
        pieces: list[str] = []
        hf_indices: list[int] = []  # indices of the pieces that HF encodes
        counts = np.ones(len(texts), np.int64)  # pieces per text
        for index, text in enumerate(texts):
            if index not in inexact_positions and len(text) <= max_chars:
                pieces.append(text)
                continue
            first_piece = len(pieces)
            for piece, is_exact in self._split(text, inexact_positions.get(index, ())):
                for part in cut(piece, self._parts.cuts, max_chars) if len(piece) > max_chars else (piece,):
                    if not is_exact or len(part) > max_chars:
                        hf_indices.append(len(pieces))
                        hf_pieces.append(
                            (_LONG_WORDS if is_exact else self._inexact_reason, int(owners[index]), part)
                        )
                    pieces.append(part)
            counts[index] = len(pieces) - first_piece
        ids, lengths = self._encode_pieces(pieces, hf_indices)
        return ids, sums(lengths, counts)

    def _split(self, text: str, positions: Sequence[int]) -> list[tuple[str, bool]]:
        """Cuts out the words around the characters at `positions`, on which the core is not exact.

        "one two three" with the position 5 gives [("one", True), (" two", False), (" three", True)].

        Returns:
            (piece, whether the core is exact on it); the pieces, concatenated, are the text.
        """
        pieces = []
        cut_until = 0
        for position in positions:
            if position < cut_until:
                continue
            start, end = self._word_around(text, cut_until, position)
            if start > cut_until:
                pieces.append((text[cut_until:start], True))
            pieces.append((text[start:end], False))
            cut_until = end
        if cut_until < len(text):
            pieces.append((text[cut_until:], True))
        return pieces

    def _word_around(self, text: str, minimum: int, position: int) -> tuple[int, int]:
        """Returns the nearest positions before and after a character at which the text can be cut."""
        # Unigram and WordPiece texts can be cut at every space, which is faster to find.
        if self._parts.kind in (UNIGRAM, WORDPIECE):
            start, next_cut = text.rfind(" ", minimum, position), text.find(" ", position + 1)
            return max(start, minimum), len(text) if next_cut < 0 else next_cut
        start = last_match(self._parts.cuts, text, minimum + 1, position)
        next_cut = self._parts.cuts.search(text, position + 1)
        return minimum if start is None else start, len(text) if next_cut is None else next_cut.start()

    def _inexact_positions(self, texts: list[str]) -> dict[int, list[int]]:
        """Returns the positions of characters that the core is not exact on, by the index of the text."""
        positions = {} if self._core.is_exact else self._inexact.positions(texts)
        searches = [self._core.inexact_positions(texts)]
        if self._inexact_strings:
            searches.append(self._inexact_strings.positions(texts))
        for index, text_positions in chain.from_iterable(search.items() for search in searches):
            positions[index] = sorted((*positions.get(index, ()), *text_positions))
        return positions

    def _encode_pieces(self, pieces: list[str], hf_indices: list[int]) -> FlatIds:
        if not hf_indices:
            return self._encode_exact(pieces)
        fast_indices = np.delete(np.arange(len(pieces)), hf_indices)
        flats = [
            self._encode_with_hf([pieces[index] for index in hf_indices]),
            self._encode_exact([pieces[index] for index in fast_indices.tolist()]),
        ]
        return _interleave(np.concatenate([hf_indices, fast_indices]).astype(np.int64), flats)

    def _encode_exact(self, pieces: list[str]) -> FlatIds:
        """Encodes pieces with the core."""
        if self._parts.split is None:
            return self._core.encode(pieces)
        parts = [list(filter(None, self._parts.split(piece))) for piece in pieces]
        ids, lengths = self._core.encode(list(chain.from_iterable(parts)))
        return ids, sums(lengths, np.fromiter(map(len, parts), np.int64, len(parts)))

    def _encode_with_hf(self, pieces: list[str]) -> FlatIds:
        """Encodes pieces with HF. Each distinct piece is encoded once, since the same words occur again and again."""
        if len(self._cache) > _MAX_CACHED_PIECES:
            self._cache.clear()
        ids_by_piece = {piece: self._cache.get(piece) for piece in pieces}
        new_pieces = [piece for piece, ids in ids_by_piece.items() if ids is None]
        if new_pieces:
            ids, lengths = encode_flat(self._exact, new_pieces)
            for piece, piece_ids in zip(new_pieces, np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
                ids_by_piece[piece] = piece_ids
                if len(piece) <= _MAX_CACHED_CHARS:
                    self._cache[piece] = piece_ids
        ids_per_piece = [ids_by_piece[piece] for piece in pieces]
        return np.concatenate(ids_per_piece), np.fromiter(
            map(len, ids_per_piece), np.int64, len(ids_per_piece)
        )


def _interleave(indices: np.ndarray, flats: Sequence[FlatIds]) -> FlatIds:
    """Merges the results of several batches in the order of the texts.

    Text 1 was encoded to 7 8 in one batch, and texts 0 and 2 to 5 and 9 9 in another:

    >>> _interleave(np.array([1, 0, 2]), [(np.array([7, 8]), np.array([2])), (np.array([5, 9, 9]), np.array([1, 2]))])
    (array([5, 7, 8, 9, 9]), array([1, 2, 2]))

    Args:
        indices: Integers [texts], the index in the result of each text of `flats`, in their order.
        flats: The ids and lengths of each batch.
    """
    ids = np.concatenate([ids for ids, _ in flats])
    lengths = np.concatenate([lengths for _, lengths in flats])
    order = np.argsort(indices, kind="stable")
    starts = np.cumsum(lengths) - lengths
    return ids[ranges(starts[order], lengths[order])], lengths[order]
