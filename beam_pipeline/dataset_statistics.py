"""What a split holds, counted per work unit and added up: the numbers in manifest.json and statistics.json."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Edges of the length histograms: four to the octave, up to 2**40.
LENGTH_EDGES = np.unique(np.floor(2.0 ** (np.arange(0, 161) / 4)).astype(np.int64))


@dataclass
class SplitStatistics:
    """Sums over some of a split's documents and rows; `merge` adds those of others.

    Attributes:
      token_counts: int64 [vocab_size], how often each id occurs.
      document_tokens, document_bytes: int64 [len(LENGTH_EDGES)], documents by length: the count at i is of those with
        LENGTH_EDGES[i] <= length < LENGTH_EDGES[i + 1]; documents of length 0 are counted at 0.
      longest_tokens, longest_bytes: the longest document's length.
      rows_checksum: `rows.rows_checksum` of the rows, mod 2**64.
      documents, bytes, tokens, rows, padding: totals.
    """

    token_counts: np.ndarray
    document_tokens: np.ndarray
    document_bytes: np.ndarray
    longest_tokens: int = 0
    longest_bytes: int = 0
    rows_checksum: int = 0
    documents: int = 0
    bytes: int = 0
    tokens: int = 0
    rows: int = 0
    padding: int = 0

    @classmethod
    def empty(cls, vocab_size: int) -> SplitStatistics:
        histogram = np.zeros(len(LENGTH_EDGES), np.int64)
        return cls(np.zeros(vocab_size, np.int64), histogram, histogram.copy())

    def add_documents(self, ids: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> None:
        """Counts documents.

        Args:
          ids: integers, all their token ids.
          tokens: int64 [documents], tokens in each.
          sizes: int64 [documents], UTF-8 bytes of each one's text.
        """
        self.token_counts += np.bincount(ids, minlength=len(self.token_counts))
        self.document_tokens += _histogram(tokens)
        self.document_bytes += _histogram(sizes)
        self.longest_tokens = max(self.longest_tokens, int(tokens.max(initial=0)))
        self.longest_bytes = max(self.longest_bytes, int(sizes.max(initial=0)))
        self.documents += len(tokens)
        self.bytes += int(sizes.sum())
        self.tokens += int(tokens.sum())

    def add_rows(self, rows: int, padding: int, checksum: int) -> None:
        """Counts rows that were packed."""
        self.rows += rows
        self.padding += padding
        self.rows_checksum = (self.rows_checksum + checksum) % 2**64

    def merge(self, other: SplitStatistics) -> SplitStatistics:
        """Adds `other` in; returns self."""
        self.token_counts += other.token_counts
        self.document_tokens += other.document_tokens
        self.document_bytes += other.document_bytes
        self.longest_tokens = max(self.longest_tokens, other.longest_tokens)
        self.longest_bytes = max(self.longest_bytes, other.longest_bytes)
        self.documents += other.documents
        self.bytes += other.bytes
        self.tokens += other.tokens
        self.add_rows(other.rows, other.padding, other.rows_checksum)
        return self

    def totals(self) -> dict[str, int]:
        """The totals by the names that manifest.json uses."""
        names = ("documents", "bytes", "tokens", "rows", "padding")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict:
        """The content of statistics.json (docs/dataset-format.md)."""
        slots = self.tokens + self.padding
        return {
            **self.totals(),
            "fill": self.tokens / slots if slots else 0.0,
            "unigram_entropy": entropy(self.token_counts),
            "token_counts": self.token_counts.tolist(),
            "document_tokens": self._lengths(self.document_tokens, self.longest_tokens, self.tokens),
            "document_bytes": self._lengths(self.document_bytes, self.longest_bytes, self.bytes),
        }

    def _lengths(self, counts: np.ndarray, longest: int, total: int) -> dict:
        used = int(np.flatnonzero(counts).max(initial=0)) + 1
        edges = [0, *LENGTH_EDGES[1 : used + 1].tolist()]
        mean = total / self.documents if self.documents else 0.0
        return {"edges": edges, "counts": counts[:used].tolist(), "mean": mean, "max": longest}


def entropy(counts: np.ndarray) -> float:
    """The entropy, in nats, of the distribution that `counts` are samples of; 0 where there are none."""
    counts = counts[counts > 0].astype(np.float64)
    if not counts.size:
        return 0.0
    total = counts.sum()
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    index = np.maximum(np.searchsorted(LENGTH_EDGES, lengths, side="right") - 1, 0)
    return np.bincount(index, minlength=len(LENGTH_EDGES))
