"""Documents → rows of `max_length` tokens, in pure NumPy: many documents a call.

Three ways: `concat` cuts all documents as one stream, and leaves a tail; `best_fit` puts whole documents
together; `pad` gives each document rows of its own. Whatever the way, every token stands in one row, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.tokenization.token_arrays import Documents, id_dtype_of, ranges


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

    @classmethod
    def from_bytes(cls, ids: bytes, starts: bytes, itemsize: int) -> Tail:
        """The tail with these bytes of `ids`, each of `itemsize` bytes, and of `starts`."""
        return cls(np.frombuffer(ids, id_dtype_of(itemsize)), np.frombuffer(starts, np.int64))

    def __reduce__(self) -> tuple[Callable[..., Tail], tuple[bytes, bytes, int]]:
        return Tail.from_bytes, (self.ids.tobytes(), self.starts.tobytes(), self.ids.itemsize)


class Packer:
    """Packs what one unit gives to one split, as it comes: of a unit of any size little is in memory at a time.

    `concat` makes the same rows whatever the documents come in. `best_fit` packs stretches of the unit one by one:
    they end with the document that brings them to 2**24 tokens, which most units never reach.

    Args:
      packing: `concat`, `best_fit` or `pad`.
      max_length: tokens in a row.
      pad_id: fills up rows that are not full.
      keep_starts: whether the rows record where documents begin.
    """

    _STRETCH = 1 << 24

    def __init__(self, *, packing: str, max_length: int, pad_id: int, keep_starts: bool):
        self._packing, self._max_length = packing, max_length
        self._pad_id, self._keep_starts = pad_id, keep_starts
        self._gathered: list[Documents] = []
        self._tokens = 0
        self._tail: Tail | None = None

    def add(self, documents: Documents) -> Iterator[RowBlock]:
        """Takes the next documents; yields the rows that are complete."""
        self._gathered.append(documents)
        self._tokens += len(documents.ids)
        while self._tokens >= self._STRETCH:
            joined = Documents.join(self._gathered)
            ends = np.cumsum(joined.lengths)
            count = int(np.searchsorted(ends, self._STRETCH)) + 1
            cut = int(ends[count - 1])
            self._gathered = [Documents(joined.ids[cut:], joined.lengths[count:])]
            self._tokens -= cut
            yield self._pack(Documents(joined.ids[:cut], joined.lengths[:count]))

    def finish(self) -> tuple[RowBlock | None, Tail | None]:
        """The last rows, and the tail; None where there are none."""
        block = self._pack(Documents.join(self._gathered)) if self._gathered else None
        return block, self._tail if self._tail is not None and len(self._tail.ids) else None

    def _pack(self, documents: Documents) -> RowBlock:
        if self._packing == "concat":
            ids, starts = documents.ids, documents.starts[documents.lengths > 0]
            if self._tail is not None and len(self._tail.ids):
                starts = np.concatenate([self._tail.starts, starts + len(self._tail.ids)])
                ids = np.concatenate([self._tail.ids, ids])
            block, self._tail = pack_stream(ids, starts, self._max_length, self._keep_starts)
            return block
        fit = best_fit if self._packing == "best_fit" else one_each
        return _pack_whole(documents, fit, self._max_length, self._pad_id, self._keep_starts)


def _pack_whole(
    documents: Documents, fit: Callable[..., Any], max_length: int, pad_id: int, keep_starts: bool
) -> RowBlock:
    """Puts documents (those longer than a row in pieces) where `fit` says."""
    pieces = _cut_long(documents, max_length)
    rows, offsets = fit(pieces.lengths, max_length)
    count = int(rows.max(initial=-1)) + 1
    ids = np.full(count * max_length, pad_id, documents.ids.dtype)
    targets = rows * max_length + offsets
    ids[ranges(targets, pieces.lengths)] = documents.ids
    lengths = np.bincount(rows, pieces.lengths, count).astype(np.uint32)
    bits = start_bits(targets, count, max_length) if keep_starts else None
    return RowBlock(ids.reshape(count, max_length), lengths, bits)


def _cut_long(documents: Documents, max_length: int) -> Documents:
    """Documents longer than a row as several pieces, all but the last of them a full row; empty ones left out."""
    pieces = -(-documents.lengths // max_length)
    lengths = np.full(int(pieces.sum()), max_length, np.int64)
    lasts = np.cumsum(pieces)[pieces > 0] - 1
    kept, counts = documents.lengths[pieces > 0], pieces[pieces > 0]
    lengths[lasts] = kept - (counts - 1) * max_length
    return Documents(documents.ids, lengths)


def one_each(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and offsets (int64 [pieces]) where every piece has a row of its own."""
    return np.arange(len(lengths)), np.zeros(len(lengths), np.int64)


def best_fit(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit-decreasing bin packing (Johnson, 1973): the longest piece first, into the fullest row that holds it.

    All pieces of one length are placed together. A row of space s takes s // length of them at once, as
    one by one they would go there, too: the row just used is the fullest. So the work grows with the
    number of different lengths, not with that of pieces.

    Args:
      lengths: integers [pieces], each from 1 to `max_length`.
      max_length: the rows' size.

    Returns:
      Each piece's row and its offset there, int64 [pieces]. Rows are numbered by their first piece.
    """
    rows = np.zeros(len(lengths), np.int64)
    offsets = np.zeros(len(lengths), np.int64)
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    spaces: dict[int, list[np.ndarray]] = {}  # rows that are open, by the space left in them
    open_spaces = 0  # bit s is set where `spaces` has rows with space s
    count = 0
    firsts = np.flatnonzero(np.diff(ordered, prepend=max_length + 1))
    for first, end in pairwise([*firsts.tolist(), len(ordered)]):
        length, pieces = int(ordered[first]), order[first:end]
        while len(pieces):
            fitting = open_spaces >> length
            if fitting:
                space = length + (fitting & -fitting).bit_length() - 1
                chosen = np.concatenate(spaces.pop(space))
                open_spaces &= ~(1 << space)
            else:
                space = max_length
                chosen = np.arange(count, count + -(-len(pieces) // (max_length // length)))
                count += len(chosen)
            each = space // length
            used = min(len(chosen), -(-len(pieces) // each))
            placed, pieces = pieces[: used * each], pieces[used * each :]
            rows[placed] = np.repeat(chosen[:used], each)[: len(placed)]
            inside = np.tile(np.arange(each) * length, used)[: len(placed)]
            offsets[placed] = max_length - space + inside
            in_last = len(placed) - (used - 1) * each
            for left, group in (
                (space - each * length, chosen[: used - 1]),
                (space - in_last * length, chosen[used - 1 : used]),
                (space, chosen[used:]),
            ):
                if left and len(group):
                    spaces.setdefault(left, []).append(group)
                    open_spaces |= 1 << left
    first_piece = np.full(count, len(lengths), np.int64)
    np.minimum.at(first_piece, rows, np.arange(len(lengths)))
    number = np.empty(count, np.int64)
    number[np.argsort(first_piece, kind="stable")] = np.arange(count)
    return number[rows], offsets


def pack_stream(
    ids: np.ndarray, starts: np.ndarray, max_length: int, keep_starts: bool
) -> tuple[RowBlock, Tail]:
    """Cuts a stream of tokens into full rows; documents may cross rows.

    Args:
      ids: integers [tokens].
      starts: int64, ascending: where documents begin in `ids`.
      max_length: tokens in a row.
      keep_starts: whether the rows record where documents begin.

    Returns:
      The full rows, and the tail: together they hold every token once, in order.
    """
    rows = len(ids) // max_length
    cut = rows * max_length
    block = RowBlock(
        ids=ids[:cut].reshape(rows, max_length),
        lengths=np.full(rows, max_length, np.uint32),
        starts=start_bits(starts[starts < cut], rows, max_length) if keep_starts else None,
    )
    return block, Tail(ids[cut:].copy(), starts[starts >= cut] - cut)


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
