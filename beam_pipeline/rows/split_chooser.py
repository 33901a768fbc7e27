"""Assigns documents to splits by seeded hashes."""

from __future__ import annotations

import numpy as np

from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.hashing import key64, mix64, place_hashes, text_hashes


class SplitChooser:
    """Assigns each document to a split by a seeded hash of its place or its text.

    Args:
        splits: (name, share) pairs. The shares add up to 1.
        seed: Determines which documents go to which split.
        split_by: `place`, or `text` to assign equal documents to the same split.
    """

    def __init__(self, splits: tuple[tuple[str, float], ...], seed: int, split_by: str):
        self._seed = seed
        self._split_by = split_by
        # A document with hash h goes to the first split with a bound above h. The last split needs no bound.
        shares = np.cumsum([share for _, share in splits])[:-1]
        self._bounds = np.array([int(share * 2**64) for share in shares], np.uint64)

    def __call__(self, batch: DocumentBatch) -> np.ndarray:
        """Returns the index of each document's split, int64 [documents]."""
        if not len(self._bounds):
            return np.zeros(len(batch.texts), np.int64)
        if self._split_by == "text":
            hashes = mix64(text_hashes(batch.texts)[:, 0] ^ np.uint64(key64("split", self._seed)))
        else:
            hashes = place_hashes("split", self._seed, batch.name, batch.places)
        return np.searchsorted(self._bounds, hashes, side="right")
