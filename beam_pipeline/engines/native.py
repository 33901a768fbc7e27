"""The engine that is many times faster than HF's and gives the same ids.

HF encodes only documents in which it is unclear here what an added token is.

Each step cuts the text further and hands the pieces to the next one:

1. `_encode_texts` splits documents at the added tokens that are matched in text as it is.
2. `_encode_sections` normalizes the sections, and splits them at the added tokens that are matched in normalized text.
3. `_encode_normalized` marks word beginnings; compiled code then cuts the text to words and encodes them.

On the way back, `_interleave` puts the ids of all pieces in the order of the text, and `sums` adds up the lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import numpy as np
from tokenizers import Tokenizer

from beam_pipeline.engines.fallbacks import Fallbacks
from beam_pipeline.engines.hf import encode_flat, reference_tokenizer
from beam_pipeline.engines.literals import Sections, TokenSpan, cut_at
from beam_pipeline.engines.token_arrays import FlatIds, ranges, sums
from beam_pipeline.engines.tokenizer_parts import TokenizerParts
from beam_pipeline.engines.word_models import make_word_model
from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.normalization import LONGEST_WORD, cut

_LITERALS = "special tokens in text"

_Encode = Callable[[Sequence[str]], FlatIds]


class NativeEngine:
    """The engine `native`. See `Engine`.

    Args:
        parts: The tokenizer's parts.
        tokenizer: The parsed tokenizer, as `tokenizer_for_text` returns it.
        parse_special_tokens: See `Engine`.

    Raises:
        UnsupportedComponent: If the compiled code does not support the tokenizer.
    """

    name = "native"
    reason = None

    def __init__(self, parts: TokenizerParts, tokenizer: Mapping, *, parse_special_tokens: bool):
        self.fallbacks = Fallbacks()
        self._threads = 1
        self._model = make_word_model(parts)
        self._parts = parts
        self._reference = _Reference(tokenizer, parse_special_tokens)

    def copy(self, threads: int) -> NativeEngine:
        """Returns an engine with the same model and counts of its own, which encodes with this number of threads."""
        engine = copy.copy(self)
        engine.fallbacks, engine._threads = Fallbacks(), threads
        return engine

    @cached_property
    def reference(self) -> Tokenizer:
        """See `Engine`. Loaded on first use, since that takes longer than making the compiled model."""
        return self._reference.load()

    def encode_batch(self, texts: Sequence[str]) -> FlatIds:
        parts = self._parts
        sections = parts.literals.split(texts) if parts.uniform else None
        if sections is not None:
            return _encode_split(sections, self._encode_sections)
        spans, hf_indices = parts.literals.find(texts)
        if spans and not parts.uniform:
            hf_indices, spans = sorted({*hf_indices, *spans}), {}
        if not hf_indices:
            return _encode_around(spans, texts, self._encode_sections)
        indices = np.delete(np.arange(len(texts)), hf_indices)
        spans = {int(np.searchsorted(indices, index)): text_spans for index, text_spans in spans.items()}
        self.fallbacks.add((_LITERALS, index, texts[index]) for index in hf_indices)
        flats = [
            encode_flat(self.reference, [texts[index] for index in hf_indices]),
            _encode_around(spans, [texts[index] for index in indices.tolist()], self._encode_sections),
        ]
        return _interleave(np.concatenate([hf_indices, indices]).astype(np.int64), flats)

    def _encode_sections(self, texts: Sequence[str]) -> FlatIds:
        """Encodes the texts between added tokens."""
        for step in self._parts.normalize:
            texts = step(texts)
        sections = self._parts.normalized_literals.split(texts)
        if sections is not None:
            return _encode_split(sections, self._encode_normalized)
        spans, _ = self._parts.normalized_literals.find(texts)
        return _encode_around(spans, texts, self._encode_normalized)

    def _encode_normalized(self, texts: Sequence[str]) -> FlatIds:
        for step in self._parts.mark:
            texts = step(texts)
        encoded = Texts.of(texts)
        if self._parts.cuts is None or encoded.sizes.max(initial=0) <= LONGEST_WORD:
            return self._model.encode(encoded, self._threads)
        pieces = [cut(text, self._parts.cuts, LONGEST_WORD) for text in texts]
        ids, lengths = self._model.encode(Texts.of(chain.from_iterable(pieces)), self._threads)
        return ids, sums(lengths, np.fromiter(map(len, pieces), np.int64, len(pieces)))


class _Reference:
    """HF's tokenizer, which is loaded once for all copies of an engine."""

    def __init__(self, tokenizer: Mapping, parse_special_tokens: bool):
        self._make = partial(reference_tokenizer, tokenizer, parse_special_tokens=parse_special_tokens)
        self._lock = ForkableLock()
        self._loaded: Tokenizer | None = None

    def load(self) -> Tokenizer:
        with self._lock:
            self._loaded = self._loaded or self._make()
            return self._loaded


def _encode_around(spans: Mapping[int, Sequence[TokenSpan]], texts: list[str], encode: _Encode) -> FlatIds:
    """Encodes texts that contain added tokens at `spans`, by the index of the text; `encode` encodes the rest."""
    return _encode_split(cut_at(texts, spans), encode) if spans else encode(texts)


def _encode_split(sections: Sections, encode: _Encode) -> FlatIds:
    flats = [encode(sections.texts), (sections.tokens, np.ones(len(sections.tokens), np.int64))]
    ids, lengths = _interleave(sections.indices, flats)
    return ids, sums(lengths, sections.counts)


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
