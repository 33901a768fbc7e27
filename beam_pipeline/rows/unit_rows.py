"""One work unit's documents → each split's rows, tail and statistics: what the pipeline's first step does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import numpy as np

from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Packer, Tail
from beam_pipeline.rows.permutation import key64, mix64
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.tokenization.documents import DocumentTokenizer


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


class UnitRows:
    """Tokenizes and packs one unit. When `blocks` has ended, the rest of what the unit gave can be read off.

    Args:
      tokenizer: makes ids of texts.
      choose: sends documents to splits.
      packers: a new one for each split.
      vocab_size: ids are below it.

    Attributes:
      statistics: of each split.
      tails: of each split; None where nothing is left.
    """

    def __init__(
        self,
        *,
        tokenizer: DocumentTokenizer,
        choose: SplitChooser,
        packers: Sequence[Packer],
        vocab_size: int,
    ):
        self._tokenizer = tokenizer
        self._choose = choose
        self._packers = packers
        self.statistics = [SplitStatistics.empty(vocab_size) for _ in packers]
        self.tails: list[Tail | None] = [None] * len(packers)

    def blocks(self, batches: Iterable[DocumentBatch]) -> Iterator[tuple[int, RowBlock]]:
        """The rows of the unit's documents, which come in order: (the split's index, its next rows)."""
        for batch in batches:
            documents = self._tokenizer.encode(batch)
            splits = self._choose(batch)
            for split, packer in enumerate(self._packers):
                chosen = splits == split
                if chosen.any():
                    part = documents.select(chosen)
                    self.statistics[split].add_documents(part.ids, part.lengths, batch.bytes[chosen])
                    for block in packer.add(part):
                        yield from self._counted(split, block)
        for split, packer in enumerate(self._packers):
            block, self.tails[split] = packer.finish()
            if block is not None:
                yield from self._counted(split, block)

    def _counted(self, split: int, block: RowBlock) -> Iterator[tuple[int, RowBlock]]:
        if len(block):
            self.statistics[split].add_rows(block)
            yield split, block
