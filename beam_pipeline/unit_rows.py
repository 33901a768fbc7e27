"""One work unit's documents → each split's rows, tail and statistics: what the pipeline's first step does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from beam_pipeline.dataset_statistics import SplitStatistics
from beam_pipeline.packing import Documents, Tail, pack
from beam_pipeline.permutation import key64, mix64
from beam_pipeline.rows import RowBlock
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.documents import DocumentTokenizer


@dataclass(frozen=True)
class UnitRows:
    """What one unit gave to one split."""

    block: RowBlock
    tail: Tail
    statistics: SplitStatistics


class SplitChooser:
    """Sends each document to a split, by a seeded hash of its place or of its text.

    Args:
      splits: (name, share) pairs; the shares add up to 1.
      seed: decides which documents go where.
      split_by: `place`, or `text`: then equal documents go to the same split.
    """

    def __init__(self, splits: tuple[tuple[str, float], ...], seed: int, split_by: str):
        self._seed = seed
        self._split_by = split_by
        # Document with hash h goes to the first split whose bound is above h; the last bound covers all.
        shares = np.cumsum([share for _, share in splits])[:-1]
        self._bounds = np.array([int(share * 2**64) for share in shares], np.uint64)

    def __call__(self, batch: DocumentBatch) -> np.ndarray:
        """The index of each document's split, int64 [documents]."""
        if not len(self._bounds):
            return np.zeros(len(batch.texts), np.int64)
        if self._split_by == "text":
            hashes = text_hashes(batch.texts)[:, 0] ^ np.uint64(key64("split", self._seed))
        else:
            hashes = batch.places.astype(np.uint64) ^ np.uint64(key64("split", self._seed, batch.name))
        return np.searchsorted(self._bounds, mix64(hashes), side="right")


def text_hashes(texts: list[str]) -> np.ndarray:
    """128-bit BLAKE2b hashes of texts, uint64 [texts, 2]: equal for equal texts, else different in all likelihood
    (for 10**12 documents the chance of one collision is below 10**-14)."""
    # surrogatepass: a lone surrogate is no valid UTF-8, but it must not stop a hash.
    digests = (blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() for text in texts)
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)


def unit_rows(
    batches: Iterable[DocumentBatch],
    *,
    tokenizer: DocumentTokenizer,
    choose: SplitChooser,
    num_splits: int,
    packing: str,
    max_length: int,
    pad_id: int,
    keep_starts: bool,
    vocab_size: int,
) -> list[UnitRows]:
    """Tokenizes and packs a unit.

    Args:
      batches: the unit's documents, in order.
      tokenizer: makes ids of texts.
      choose: sends documents to splits.
      num_splits: how many splits there are.
      packing, max_length, pad_id, keep_starts: as `packing.pack` takes them.
      vocab_size: ids are below it.

    Returns:
      What the unit gave to each split, by the split's index.
    """
    gathered: list[list[Documents]] = [[] for _ in range(num_splits)]
    statistics = [SplitStatistics.empty(vocab_size) for _ in range(num_splits)]
    for batch in batches:
        documents = tokenizer.encode(batch)
        splits = choose(batch)
        for split in range(num_splits):
            chosen = splits == split
            if chosen.any():
                part = documents.select(chosen)
                gathered[split].append(part)
                statistics[split].add_documents(part.ids, part.lengths, batch.bytes[chosen])
    results = []
    for parts, counted in zip(gathered, statistics, strict=True):
        block, tail = pack(
            _join(parts), packing=packing, max_length=max_length, pad_id=pad_id, keep_starts=keep_starts
        )
        counted.add_rows(block)
        results.append(UnitRows(block, tail, counted))
    return results


def _join(parts: list[Documents]) -> Documents:
    if not parts:
        return Documents(np.empty(0, np.uint16), np.empty(0, np.int64))
    if len(parts) == 1:
        return parts[0]
    return Documents(
        np.concatenate([part.ids for part in parts]), np.concatenate([part.lengths for part in parts])
    )
