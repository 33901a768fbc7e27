"""The statistics of a split, counted per work unit and summed for manifest.json and statistics.json."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields

import numpy as np

from beam_pipeline.engines.token_arrays import has_target_bits, targets_of
from beam_pipeline.native.ids import count_ids
from beam_pipeline.rows.blocks import RowBlock, rows_checksum
from beam_pipeline.rows.documents import DocumentBlock

HISTOGRAMS = ("document_tokens", "document_bytes", "document_bytes_per_token", "row_fill")
"""The histograms of statistics.json."""
TARGET_HISTOGRAMS = ("document_turns", "row_targets")
"""Those that only conversations have."""

# Edges of the length histograms: four per octave, up to 2**40.
LENGTH_EDGES = np.unique(np.floor(2.0 ** (np.arange(0, 161) / 4)).astype(np.int64))

# The bin of each length below 2**16, because a table is several times as fast as a search.
_BINS = np.maximum(np.searchsorted(LENGTH_EDGES, np.arange(1 << 16), side="right") - 1, 0).astype(np.uint8)

# Bytes per token: bins of a quarter byte. The last one counts all values from 16 on.
_BINS_PER_BYTE = 4
_RATIO_BINS = 16 * _BINS_PER_BYTE + 1

# The fill of rows: bins of 5%. Each includes its upper edge.
_FILL_BINS = 20

# Of the histograms, in the order of their fields.
_HISTOGRAM_BINS = (
    len(LENGTH_EDGES),
    len(LENGTH_EDGES),
    _RATIO_BINS,
    _FILL_BINS,
    len(LENGTH_EDGES),
    _FILL_BINS,
)


@dataclass
class SplitStatistics:
    """Sums over some of a split's documents and rows. `merge` adds the sums over others."""

    token_counts: np.ndarray
    """int64 [vocab_size]: the number of occurrences of each id."""
    document_tokens: np.ndarray
    """int64 [len(LENGTH_EDGES)]: documents by their number of tokens. Bin i counts those with LENGTH_EDGES[i] <=
    length < LENGTH_EDGES[i + 1]. Bin 0 also counts documents of length 0.
    """
    document_bytes: np.ndarray
    """int64 [len(LENGTH_EDGES)]: documents by their number of UTF-8 bytes, in the same bins."""
    document_bytes_per_token: np.ndarray
    """int64 [65]: documents by UTF-8 bytes per token, in bins of 0.25. The last bin counts all from 16 on. Documents
    without tokens are left out.
    """
    row_fill: np.ndarray
    """int64 [20]: rows by their fill, the share of positions with tokens. Bin i counts i / 20 < fill <= (i + 1) / 20.
    """
    document_turns: np.ndarray
    """int64 [len(LENGTH_EDGES)]: conversations by their number of turns that are targets, in the bins of lengths."""
    row_targets: np.ndarray
    """int64 [20]: rows of conversations by the share of positions that are targets, in the bins of `row_fill`."""
    longest_tokens: int = 0
    """The largest number of tokens in a document."""
    longest_bytes: int = 0
    """The largest number of UTF-8 bytes in a document."""
    rows_checksum: int = 0
    """`rows_checksum` of the rows."""
    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes of the documents."""
    tokens: int = 0
    rows: int = 0
    padding: int = 0
    """Positions without a token."""
    targets: int = 0
    """Tokens that are targets of the loss, of conversations."""

    @classmethod
    def empty(cls, vocab_size: int) -> SplitStatistics:
        return cls(*(np.zeros(size, np.int64) for size in (vocab_size, *_HISTOGRAM_BINS)))

    def add_documents(self, ids: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> None:
        """Counts documents.

        Args:
            ids: Integers [tokens of all documents], those of conversations with the bits of targets.
            tokens: int64 [documents]: the number of tokens in each.
            sizes: int64 [documents]: the number of UTF-8 bytes in each one's text.
        """
        if has_target_bits(ids) and (is_target := targets_of(ids)).any():
            self.targets += int(np.count_nonzero(is_target))
            self.document_turns += _histogram(_runs(is_target, tokens))
        count_ids(ids, self.token_counts)
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

    def add_rows(self, block: RowBlock | DocumentBlock) -> None:
        """Counts packed rows, or documents that are not packed, each as a full row."""
        if isinstance(block, DocumentBlock):
            self.rows += len(block)
            self.row_fill[-1] += len(block)
            self.rows_checksum = (self.rows_checksum + block.checksum()) % 2**64
            return
        rows, max_length = block.ids.shape
        lengths = block.lengths.astype(np.int64)
        self.rows += rows
        self.padding += block.ids.size - int(lengths.sum())
        self.row_fill += _shares(lengths, max_length)
        if has_target_bits(block.ids) and (is_target := targets_of(block.ids)).any():
            self.row_targets += _shares(np.count_nonzero(is_target, axis=1), max_length)
        self.rows_checksum = (self.rows_checksum + rows_checksum(block.ids, block.lengths)) % 2**64

    def merge(self, other: SplitStatistics) -> SplitStatistics:
        """Adds `other` in place, and returns self."""
        for field in fields(self):
            value, addend = getattr(self, field.name), getattr(other, field.name)
            if field.name.startswith("longest_"):
                setattr(self, field.name, max(value, addend))
            elif field.name == "rows_checksum":
                self.rows_checksum = (value + addend) % 2**64
            elif isinstance(value, np.ndarray):
                value += addend
            else:
                setattr(self, field.name, value + addend)
        return self

    def to_bytes(self) -> bytes:
        arrays = [getattr(self, name) for name in _ARRAYS]
        return b"".join([np.array([getattr(self, name) for name in _SUMS], np.uint64).tobytes(), *arrays])

    @classmethod
    def from_bytes(cls, data: bytes) -> SplitStatistics:
        """The inverse of `to_bytes`. Copies the arrays, so that `merge` can write to them."""
        sums = np.frombuffer(data, np.uint64, len(_SUMS)).tolist()
        counts = np.frombuffer(data, np.int64, offset=8 * len(_SUMS)).copy()
        histogram_ends = np.cumsum(_HISTOGRAM_BINS)
        arrays = np.split(counts, len(counts) - histogram_ends[-1] + np.array([0, *histogram_ends[:-1]]))
        return cls(*arrays, **dict(zip(_SUMS, sums, strict=True)))

    def totals(self) -> dict[str, int]:
        """Returns the totals by the names that manifest.json uses."""
        names = ("documents", "bytes", "tokens", "rows", "padding")
        return {name: getattr(self, name) for name in (*names, *(("targets",) if self.targets else ()))}

    def to_json(self) -> dict:
        """Returns the content of statistics.json (docs/dataset-format.md)."""
        slots = self.tokens + self.padding
        return {
            **self.totals(),
            "fill": self.tokens / slots if slots else 0.0,
            "unigram_entropy": entropy(self.token_counts),
            "token_counts": self.token_counts.tolist(),
            "document_tokens": self._lengths(self.document_tokens, self.longest_tokens, self.tokens),
            "document_bytes": self._lengths(self.document_bytes, self.longest_bytes, self.bytes),
            "document_bytes_per_token": {
                "edges": edges_of("document_bytes_per_token"),
                "counts": self.document_bytes_per_token.tolist(),
            },
            "row_fill": {"edges": edges_of("row_fill"), "counts": self.row_fill.tolist()},
            **(self._target_histograms() if self.targets else {}),
        }

    def _target_histograms(self) -> dict:
        num_bins = _used_bins(self.document_turns)
        return {
            "document_turns": {
                "edges": edges_of("document_turns", num_bins),
                "counts": self.document_turns[:num_bins].tolist(),
            },
            "row_targets": {"edges": edges_of("row_targets"), "counts": self.row_targets.tolist()},
        }

    def _lengths(self, counts: np.ndarray, longest: int, total: int) -> dict:
        num_bins = _used_bins(counts)
        edges = edges_of("document_tokens", num_bins)
        mean = total / self.documents if self.documents else 0.0
        return {"edges": edges, "counts": counts[:num_bins].tolist(), "mean": mean, "max": longest}


_ARRAYS = tuple(field.name for field in fields(SplitStatistics) if field.default is MISSING)
_SUMS = tuple(field.name for field in fields(SplitStatistics) if field.default is not MISSING)


def edges_of(histogram: str, bins: int = 0) -> list[float]:
    """Returns the edges of a histogram's bins, one more than there are bins.

    Args:
        histogram: Its name in statistics.json.
        bins: For a histogram of lengths or turns, the number of its bins, since those after the last document are left
            out.
    """
    if histogram == "document_bytes_per_token":
        return (np.arange(_RATIO_BINS + 1) / _BINS_PER_BYTE).tolist()
    if histogram in ("row_fill", "row_targets"):
        return (np.arange(_FILL_BINS + 1) / _FILL_BINS).tolist()
    return [0, *LENGTH_EDGES[1 : bins + 1].tolist()]


def entropy(counts: np.ndarray) -> float:
    """Returns the entropy, in nats, of the distribution given by `counts`; 0 if there are none."""
    counts = counts[counts > 0].astype(np.float64)
    if not counts.size:
        return 0.0
    total = counts.sum()
    return float(np.log(total) - (counts * np.log(counts)).sum() / total)


def _used_bins(counts: np.ndarray) -> int:
    return int(np.flatnonzero(counts).max(initial=0)) + 1


def _runs(is_target: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Returns the number of runs of targets in each document: int64 [documents].

    >>> _runs(np.array([False, True, True, True, False, True]), np.array([3, 0, 3]))
    array([1, 0, 2])
    """
    ends = np.cumsum(tokens)
    starts = is_target.copy()
    starts[1:] &= ~is_target[:-1]
    firsts = (ends - tokens)[tokens > 0]
    starts[firsts] = is_target[firsts]
    counts = np.concatenate([[0], np.cumsum(starts)])
    return counts[ends] - counts[ends - tokens]


def _shares(positions: np.ndarray, max_length: int) -> np.ndarray:
    """Counts rows by their share of positions, in bins of 5%. One without any is in the first."""
    return np.bincount(np.maximum(_FILL_BINS * positions - 1, 0) // max_length, minlength=_FILL_BINS)


def _histogram(lengths: np.ndarray) -> np.ndarray:
    """Counts lengths by the bins of `LENGTH_EDGES`.

    >>> _histogram(np.array([0, 1, 3, 3, 100_000])).nonzero()
    (array([ 0,  2, 60]),)
    """
    bins = _BINS[np.minimum(lengths, len(_BINS) - 1)].astype(np.int64)
    is_long = lengths >= len(_BINS)
    if is_long.any():
        bins[is_long] = np.searchsorted(LENGTH_EDGES, lengths[is_long], side="right") - 1
    return np.bincount(bins, minlength=len(LENGTH_EDGES))
