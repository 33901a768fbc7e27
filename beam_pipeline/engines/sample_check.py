"""A check in production that an engine gives HF's ids: both encode a small part of a run's documents.

The part consists of a random sample of the documents, and of excerpts on which an engine is likely to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from beam_pipeline.engines.engine import Engine
from beam_pipeline.engines.failures import encode_singly_if_needed
from beam_pipeline.engines.hf import encode_flat
from beam_pipeline.engines.suspects import find_suspects
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import EngineMismatch
from beam_pipeline.support.hashing import mix64, place_hashes

# Encoding this many bytes with HF takes about 1% of the time that a process needs for a unit of 32 MiB.
_BYTES_PER_UNIT = 16 << 10
_UNIT = 32 << 20

# At least this much of a small input is checked, and all of a very small one, which takes HF a fraction of a second.
_MIN_BYTES = 256 << 10

# Only the beginning of a longer document is checked.
_MAX_CHARS = 16 << 10

# The share of the batches in which excerpts are checked, if the input is large. Finding and encoding those of a batch
# takes 30 to 90 ms per megabyte, so this takes about 1 ms per megabyte of the input.
_SHARE_OF_BATCHES = 1 / 64


class SampleCheck:
    """Compares an engine with HF on a sample of the documents.

    A seeded hash of a document's place determines whether the document is in the sample. That of a batch's first
    document determines whether the batch's excerpts are checked. So every runner checks the same text.
    """

    def __init__(self, engine: Engine, *, input_bytes: int, seed: int):
        self._engine = engine
        self._seed = seed
        share = max(_BYTES_PER_UNIT / _UNIT, _MIN_BYTES / max(1, input_bytes))
        self._bound = _bound(share)
        self._batch_bound = _bound(max(share, _SHARE_OF_BATCHES))

    def __call__(self, batch: DocumentBatch, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Checks the engine's ids of the batch's documents, integers [tokens]; `lengths` counts each document's.

        Raises:
            EngineMismatch: If a document's ids differ; it names the document.
        """
        if self._engine.reference is None or not batch.texts:
            return
        hashes = place_hashes("engine", self._seed, batch.name, batch.places)
        ends = np.cumsum(lengths)
        with self._engine.fallbacks.paused():
            checked, excerpts = [], []
            for index in np.flatnonzero(hashes <= self._bound).tolist():
                text = batch.texts[index]
                if len(text) > _MAX_CHARS:
                    excerpts.append((index, text[:_MAX_CHARS]))
                else:
                    checked.append((index, text, ids[ends[index] - lengths[index] : ends[index]]))
            if mix64(hashes[:1])[0] <= self._batch_bound:
                excerpts += find_suspects(batch.texts)
            if excerpts:
                excerpt_ids, excerpt_lengths = self._engine.encode_batch([text for _, text in excerpts])
                split_ids = np.split(excerpt_ids, np.cumsum(excerpt_lengths)[:-1])
                checked += [(*excerpt, ids) for excerpt, ids in zip(excerpts, split_ids, strict=True)]
            self._refuse_differences(batch, checked)

    def _refuse_differences(
        self, batch: DocumentBatch, checked: Sequence[tuple[int, str, np.ndarray]]
    ) -> None:
        """Compares texts with HF: (number of the document, text, the engine's ids)."""
        (ids, lengths), errors = encode_singly_if_needed(
            partial(encode_flat, self._engine.reference), [text for _, text, _ in checked]
        )
        hf_ids = iter(np.split(ids, np.cumsum(lengths)[:-1]))
        for number, (index, _, engine_ids) in enumerate(checked):
            if number in errors:
                difference = (
                    f"the engine {self._engine.name} encodes this document, and HF's tokenizer does not: "
                    f"{errors[number]}; use --engine hf"
                )
            elif np.array_equal(engine_ids, expected := next(hf_ids)):
                continue
            else:
                difference = _difference(self._engine.name, engine_ids, expected.tolist())
            raise EngineMismatch(difference, batch.name, int(batch.places[index]))


def _bound(share: float) -> np.uint64:
    """Returns the largest hash that selects this share of all hashes."""
    return np.uint64(min(int(share * 2**64), 2**64 - 1))


def _difference(name: str, engine_ids: np.ndarray, hf_ids: list[int]) -> str:
    """Describes the first tokens that differ."""
    token = 0
    while token < min(len(engine_ids), len(hf_ids)) and engine_ids[token] == hf_ids[token]:
        token += 1
    shown = slice(token, token + 4)
    return (
        f"the engine {name} and HF's tokenizer give different ids for this document: from token {token} on, "
        f"{engine_ids[shown].tolist()} instead of {hf_ids[shown]}; use --engine hf"
    )
