"""Documents → rows of `max_length` tokens. Pure NumPy: one call packs a whole work unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from beam_pipeline.rows import RowBlock


@dataclass(frozen=True)
class Documents:
    """Tokenized documents, one after the other.

    Attributes:
      ids: integers [tokens], all documents' token ids.
      lengths: int64 [documents], tokens in each; their sum is `tokens`.
    """

    ids: np.ndarray
    lengths: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """int64 [documents]: where each document begins in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    def select(self, chosen: np.ndarray) -> Documents:
        """The documents at the indices or the boolean mask `chosen`, in that order."""
        if chosen.dtype == bool and chosen.all():
            return self
        lengths = self.lengths[chosen]
        return Documents(self.ids[ranges(self.starts[chosen], lengths)], lengths)


@dataclass(frozen=True)
class Tail:
    """What is left of a unit when its last whole row is cut: fewer than `max_length` tokens.

    Attributes:
      ids: integers [tokens].
      starts: int64, ascending; the positions in `ids` where documents begin. A tail that goes on with a
        document whose start is in the row before has none at 0.
    """

    ids: np.ndarray
    starts: np.ndarray


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The integers of all ranges [start, start + length), one range after the other, as int64."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)


def pack_concat(documents: Documents, max_length: int, keep_starts: bool) -> tuple[RowBlock, Tail]:
    """Cuts the documents' tokens, taken as one stream, into full rows; documents may cross rows.

    Args:
      documents: what one unit gave to one split.
      max_length: tokens in a row.
      keep_starts: whether the rows record where documents begin.

    Returns:
      The full rows, and the tail: together they hold every token once, in order.
    """
    rows = len(documents.ids) // max_length
    cut = rows * max_length
    starts = documents.starts[documents.lengths > 0]
    block = RowBlock(
        ids=documents.ids[:cut].reshape(rows, max_length),
        lengths=np.full(rows, max_length, np.uint32),
        starts=start_bits(starts[starts < cut], rows, max_length) if keep_starts else None,
    )
    return block, Tail(documents.ids[cut:], starts[starts >= cut] - cut)


def pack_tails(tails: list[Tail], max_length: int, pad_id: int, keep_starts: bool) -> RowBlock:
    """Packs the units' tails, in the order given, into rows; only the very last may need padding.

    A tail that begins in the middle of a document begins a segment of its own here, since the
    document's other tokens stand in another row.
    """
    tails = [tail for tail in tails if len(tail.ids)]
    if not tails:
        dtype = np.uint16
        return RowBlock(np.empty((0, max_length), dtype), np.empty(0, np.uint32), None)
    tokens = sum(len(tail.ids) for tail in tails)
    rows = -(-tokens // max_length)
    ids = np.full(rows * max_length, pad_id, tails[0].ids.dtype)
    ids[:tokens] = np.concatenate([tail.ids for tail in tails])
    lengths = np.full(rows, max_length, np.uint32)
    lengths[-1] = tokens - (rows - 1) * max_length
    bits = None
    if keep_starts:
        sizes = np.array([len(tail.ids) for tail in tails], np.int64)
        firsts = np.cumsum(sizes) - sizes
        inside = [tail.starts + first for tail, first in zip(tails, firsts, strict=True)]
        bits = start_bits(np.union1d(firsts, np.concatenate(inside)), rows, max_length)
    return RowBlock(ids.reshape(rows, max_length), lengths, bits)


def start_bits(positions: np.ndarray, rows: int, max_length: int) -> np.ndarray:
    """Packed bits uint8 [rows, ceil(max_length / 8)], set at these positions of the rows' joined tokens."""
    flags = np.zeros((rows, max_length), bool)
    flags.reshape(-1)[positions] = True
    return np.packbits(flags, axis=1)


def segments_and_positions(block: RowBlock) -> tuple[np.ndarray, np.ndarray]:
    """The features `segment_ids` and `position_ids` of a block that records starts.

    Returns:
      int64 [rows, max_length] each. Segments count from 1 in each row, positions from 0 in each segment;
      padding has 0 in both.
    """
    max_length = block.ids.shape[1]
    flags = np.unpackbits(block.starts, axis=1, count=max_length).astype(bool)
    flags[:, 0] = True  # a row that goes on with a document of the row before begins a segment of its own
    columns = np.arange(max_length)
    attended = columns < block.lengths[:, None]
    segments = np.cumsum(flags, axis=1)
    begins = np.maximum.accumulate(np.where(flags, columns, 0), axis=1)
    return np.where(attended, segments, 0), np.where(attended, columns - begins, 0)
