"""What a split holds, counted per work unit and added up: the numbers in manifest.json and statistics.json."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

import numpy as np

from beam_pipeline.rows.blocks import RowBlock, rows_checksum

# Edges of the length histograms: four to the octave, up to 2**40.
LENGTH_EDGES = np.unique(np.floor(2.0 ** (np.arange(0, 161) / 4)).astype(np.int64))

# The bin of every length below 2**16, since a table is several times as fast as a search.
_BINS = np.maximum(np.searchsorted(LENGTH_EDGES, np.arange(1 << 16), side="right") - 1, 0).astype(np.uint8)

# Bytes per token: bins of a quarter byte; the last one, from 16 on, holds all above.
_BINS_PER_BYTE = 4
_RATIO_BINS = 16 * _BINS_PER_BYTE + 1

# How full rows are: bins of 5%, each with its upper edge.
_FILL_BINS = 20


@dataclass
class SplitStatistics:
    """Sums over some of a split's documents and rows; `merge` adds those of others.

    Attributes:
      token_counts: int64 [vocab_size], how often each id occurs.
      document_tokens, document_bytes: int64 [len(LENGTH_EDGES)], documents by length: the count at i is of those with
        LENGTH_EDGES[i] <= length < LENGTH_EDGES[i + 1]; documents of length 0 are counted at 0.
      document_bytes_per_token: int64 [65], documents by UTF-8 bytes ÷ tokens, in bins of 0.25; the last holds all from
        16 on. Documents without tokens are left out.
      row_fill: int64 [20], rows by the share of their positions that hold tokens: the count at i is of those with more
        than i / 20 and up to (i + 1) / 20.
      longest_tokens, longest_bytes: the longest document's length.
      rows_checksum: `rows.rows_checksum` of the rows, mod 2**64.
      documents, bytes, tokens, rows, padding: totals.
    """

    token_counts: np.ndarray
    document_tokens: np.ndarray
    document_bytes: np.ndarray
    document_bytes_per_token: np.ndarray
    row_fill: np.ndarray
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
        sizes = (vocab_size, len(LENGTH_EDGES), len(LENGTH_EDGES), _RATIO_BINS, _FILL_BINS)
        return cls(*(np.zeros(size, np.int64) for size in sizes))

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
        ratios = _BINS_PER_BYTE * sizes // np.maximum(tokens, 1)
        ratios = np.minimum(ratios, _RATIO_BINS - 1)[tokens > 0]
        self.document_bytes_per_token += np.bincount(ratios, minlength=_RATIO_BINS)
        self.longest_tokens = max(self.longest_tokens, int(tokens.max(initial=0)))
        self.longest_bytes = max(self.longest_bytes, int(sizes.max(initial=0)))
        self.documents += len(tokens)
        self.bytes += int(sizes.sum())
        self.tokens += int(tokens.sum())

    def add_rows(self, block: RowBlock) -> None:
        """Counts rows that were packed."""
        rows, max_length = block.ids.shape
        lengths = block.lengths.astype(np.int64)
        self.rows += rows
        self.padding += block.ids.size - int(lengths.sum())
        self.row_fill += np.bincount((_FILL_BINS * lengths - 1) // max_length, minlength=_FILL_BINS)
        self.rows_checksum = (self.rows_checksum + rows_checksum(block.ids, block.lengths)) % 2**64

    def merge(self, other: SplitStatistics) -> SplitStatistics:
        """Adds `other` in; returns self."""
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name.startswith("longest_"):
                setattr(self, field.name, max(ours, theirs))
            elif field.name == "rows_checksum":
                self.rows_checksum = (ours + theirs) % 2**64
            elif isinstance(ours, np.ndarray):
                ours += theirs
            else:
                setattr(self, field.name, ours + theirs)
        return self

    def to_bytes(self) -> bytes:
        arrays = [getattr(self, name) for name in _ARRAYS]
        return b"".join([np.array([getattr(self, name) for name in _SUMS], np.uint64).tobytes(), *arrays])

    @classmethod
    def from_bytes(cls, data: bytes) -> SplitStatistics:
        """The inverse of `to_bytes`; its arrays are copies, so that others can be added."""
        sums = np.frombuffer(data, np.uint64, len(_SUMS)).tolist()
        counts = np.frombuffer(data, np.int64, offset=8 * len(_SUMS)).copy()
        fixed = np.cumsum([len(LENGTH_EDGES), len(LENGTH_EDGES), _RATIO_BINS, _FILL_BINS])
        arrays = np.split(counts, len(counts) - fixed[-1] + np.array([0, *fixed[:-1]]))
        return cls(*arrays, **dict(zip(_SUMS, sums, strict=True)))

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
            "document_bytes_per_token": {
                "edges": (np.arange(_RATIO_BINS + 1) / _BINS_PER_BYTE).tolist(),
                "counts": self.document_bytes_per_token.tolist(),
            },
            "row_fill": {
                "edges": (np.arange(_FILL_BINS + 1) / _FILL_BINS).tolist(),
                "counts": self.row_fill.tolist(),
            },
        }

    def _lengths(self, counts: np.ndarray, longest: int, total: int) -> dict:
        used = int(np.flatnonzero(counts).max(initial=0)) + 1
        edges = [0, *LENGTH_EDGES[1 : used + 1].tolist()]
        mean = total / self.documents if self.documents else 0.0
        return {"edges": edges, "counts": counts[:used].tolist(), "mean": mean, "max": longest}


_ARRAYS = tuple(field.name for field in fields(SplitStatistics) if field.default is MISSING)
_SUMS = tuple(field.name for field in fields(SplitStatistics) if field.default is not MISSING)


def entropy(counts: np.ndarray) -> float:
    """The entropy, in nats, of the distribution that `counts` are samples of; 0 where there are none."""
    counts = counts[counts > 0].astype(np.float64)
    if not counts.size:
        return 0.0
    total = counts.sum()
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    bins = _BINS[np.minimum(lengths, len(_BINS) - 1)].astype(np.int64)
    long = lengths >= len(_BINS)
    if long.any():
        bins[long] = np.searchsorted(LENGTH_EDGES, lengths[long], side="right") - 1
    return np.bincount(bins, minlength=len(LENGTH_EDGES))
