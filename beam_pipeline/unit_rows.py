"""One work unit's documents → each split's rows, tail and statistics: what the pipeline's first step does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from beam_pipeline.dataset_statistics import SplitStatistics
from beam_pipeline.packing import Documents, Tail, pack
from beam_pipeline.permutation import key64, mix64
from beam_pipeline.rows import RowBlock, rows_checksum
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.documents import DocumentTokenizer


@dataclass(frozen=True)
class UnitRows:
    """What one unit gave to one split."""

    block: RowBlock
    tail: Tail
    statistics: SplitStatistics


class SplitChooser:
    """Sends each document to a split, by a seeded hash of its place.

    Args:
      splits: (name, share) pairs; the shares add up to 1.
      seed: decides which documents go where.
    """

    def __init__(self, splits: tuple[tuple[str, float], ...], seed: int):
        self._seed = seed
        # Document with hash h goes to the first split whose bound is above h; the last bound covers all.
        shares = np.cumsum([share for _, share in splits])[:-1]
        self._bounds = np.array([int(share * 2**64) for share in shares], np.uint64)

    def __call__(self, name: str, places: np.ndarray) -> np.ndarray:
        """The splits' indices (int64 [documents]) of documents at `places` in the file `name`."""
        if not len(self._bounds):
            return np.zeros(len(places), np.int64)
        key = np.uint64(key64("split", self._seed, name))
        return np.searchsorted(self._bounds, mix64(places.astype(np.uint64) ^ key), side="right")


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
        documents = tokenizer.encode(batch.texts)
        splits = choose(batch.name, batch.places)
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
        padding = block.ids.size - int(block.lengths.sum())
        counted.add_rows(len(block), padding, rows_checksum(block.ids, block.lengths))
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
