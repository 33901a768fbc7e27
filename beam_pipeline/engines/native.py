"""The engine that is many times faster than HF's and gives the same ids.

HF encodes only documents in which it is unclear here what an added token is.

Each step cuts the text further and hands the pieces to the next one:

1. `encode_batch` splits documents at the added tokens that are matched in text as it is.
2. `_encode_sections` normalizes the sections, and splits them at the added tokens that are matched in normalized text.
3. `_encode_normalized` marks word beginnings; compiled code then cuts the text to words and encodes them.

On the way back, `_encode_around` puts the added tokens between the ids of the sections.
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
from beam_pipeline.engines.literals import Spans
from beam_pipeline.engines.token_arrays import FlatIds, ranges, sums
from beam_pipeline.engines.tokenizer_parts import TokenizerParts
from beam_pipeline.engines.word_models import make_word_model
from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.normalization import LONGEST_WORD, Step, cut

_LITERALS = "special tokens in text"


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
        texts = Texts.of(texts)
        spans = self._parts.literals.find(texts)
        hf_indices = spans.unclear if self._parts.uniform else np.unique(spans.owners)
        if not len(hf_indices):
            return _encode_around(spans, self._encode_sections)
        indices = np.delete(np.arange(len(texts)), hf_indices)
        left = texts.take(hf_indices)
        self.fallbacks.add((_LITERALS, *text) for text in zip(hf_indices.tolist(), left, strict=True))
        rest = self._parts.literals.find(texts.take(indices))
        flats = [encode_flat(self.reference, list(left)), _encode_around(rest, self._encode_sections)]
        return _interleave(np.concatenate([hf_indices, indices]), flats)

    def _encode_sections(self, texts: Texts) -> FlatIds:
        """Encodes the texts between added tokens."""
        spans = self._parts.normalized_literals.find(_apply(self._parts.normalize, texts))
        return _encode_around(spans, self._encode_normalized)

    def _encode_normalized(self, texts: Texts) -> FlatIds:
        texts = _apply(self._parts.mark, texts)
        if self._parts.cuts is None or texts.sizes.max(initial=0) <= LONGEST_WORD:
            return self._model.encode(texts, self._threads)
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
        with self._lock.held:
            self._loaded = self._loaded or self._make()
            return self._loaded


def _apply(steps: Sequence[Step], texts: Sequence[str]) -> Texts:
    for step in steps:
        texts = step(texts)
    return Texts.of(texts)


def _encode_around(spans: Spans, encode: Callable[[Texts], FlatIds]) -> FlatIds:
    """Encodes texts that contain added tokens at `spans`; `encode` encodes the sections between them."""
    if not len(spans.owners):
        return encode(spans.texts)
    ids, lengths = encode(spans.sections)
    ids = np.insert(ids, np.cumsum(lengths)[spans.before], spans.ids)
    counts = spans.counts
    return ids, sums(lengths, counts) + counts - 1


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
