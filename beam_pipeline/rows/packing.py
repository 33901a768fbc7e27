"""Documents → rows of `max_length` tokens, in pure NumPy, many documents per call.

There are three ways of packing. `concat` cuts all documents as one stream, and leaves a tail. `best_fit` combines whole
documents in rows. `pad` gives each document rows of its own. In all of them, every token is in exactly one row. `none`
keeps whole documents, each as one row of its own length; those without tokens are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from beam_pipeline.engines.token_arrays import Documents, id_dtype_of, ranges, selected_columns
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock


@dataclass(frozen=True)
class Tail:
    """The tokens after the last full row of a work unit: fewer than `max_length`."""

    ids: np.ndarray
    """Integers [tokens]."""
    starts: np.ndarray
    """int64, ascending: the positions in `ids` at which documents begin. If the tail begins within a document, 0 is not
    among them.
    """

    @classmethod
    def from_bytes(cls, ids: bytes, starts: bytes, itemsize: int) -> Tail:
        """Makes a tail from the bytes of `ids`, with `itemsize` bytes per id, and of `starts`."""
        return cls(np.frombuffer(ids, id_dtype_of(itemsize)), np.frombuffer(starts, np.int64))

    def __reduce__(self) -> tuple[Callable[..., Tail], tuple[bytes, bytes, int]]:
        return Tail.from_bytes, (self.ids.tobytes(), self.starts.tobytes(), self.ids.itemsize)


class Packer:
    """Packs the documents of one work unit and split incrementally, so that memory does not grow with the unit.

    Documents are packed in groups. A group ends with the document that brings it to 2**24 tokens; most units are
    smaller. So the rows do not depend on how the documents are divided into calls of `add`. Only `best_fit` depends on
    the groups: it packs each of them on its own.
    """

    _GROUP_TOKENS = 1 << 24

    def __init__(self, *, packing: str, max_length: int | None, pad_id: int, keep_starts: bool):
        self._packing, self._max_length = packing, max_length
        self._pad_id, self._keep_starts = pad_id, keep_starts
        self._pending: list[Documents] = []
        self._tokens = 0
        self._tail: Tail | None = None

    def add(self, documents: Documents) -> Iterator[RowBlock | DocumentBlock]:
        """Adds documents, and yields the rows that are complete."""
        self._pending.append(documents)
        self._tokens += len(documents.ids)
        while self._tokens >= self._GROUP_TOKENS:
            # Pack up to and including the document that reaches the limit, however the calls divide the documents.
            joined = Documents.join(self._pending)
            ends = np.cumsum(joined.lengths)
            group, rest = joined.cut(int(np.searchsorted(ends, self._GROUP_TOKENS)) + 1)
            self._pending = [rest]
            self._tokens -= len(group.ids)
            yield self._pack(group)

    def finish(self) -> tuple[RowBlock | DocumentBlock | None, Tail | None]:
        """Returns the last rows and the tail, each None if empty."""
        block = self._pack(Documents.join(self._pending)) if self._pending else None
        return block, self._tail if self._tail is not None and len(self._tail.ids) else None

    def _pack(self, documents: Documents) -> RowBlock | DocumentBlock:
        if self._packing == "none":
            documents = documents.select(documents.lengths > 0)
            return DocumentBlock(documents.ids, documents.lengths.astype(np.uint32), documents.columns)
        if self._packing == "concat":
            ids, starts = documents.ids, documents.starts[documents.lengths > 0]
            if self._tail is not None and len(self._tail.ids):
                starts = np.concatenate([self._tail.starts, starts + len(self._tail.ids)])
                ids = np.concatenate([self._tail.ids, ids])
            block, self._tail = pack_stream(ids, starts, self._max_length, self._keep_starts)
            return block
        place_pieces = best_fit if self._packing == "best_fit" else one_per_row
        return _pack_whole(documents, place_pieces, self._max_length, self._pad_id, self._keep_starts)


def _pack_whole(
    documents: Documents, place_pieces: Callable[..., Any], max_length: int, pad_id: int, keep_starts: bool
) -> RowBlock:
    """Puts each document at the row and offset that `place_pieces` returns. Cuts documents longer than a row first."""
    pieces = _cut_long(documents, max_length)
    rows, offsets = place_pieces(pieces.lengths, max_length)
    count = int(rows.max(initial=-1)) + 1
    ids = np.full(count * max_length, pad_id, documents.ids.dtype)
    targets = rows * max_length + offsets
    ids[ranges(targets, pieces.lengths)] = documents.ids
    lengths = np.bincount(rows, pieces.lengths, count).astype(np.uint32)
    bits = start_bits(targets, count, max_length) if keep_starts else None
    # Only rows of one document can have columns, and the pieces are then the rows.
    return RowBlock(ids.reshape(count, max_length), lengths, bits, columns=pieces.columns)


def _cut_long(documents: Documents, max_length: int) -> Documents:
    """Cuts documents longer than a row into pieces, each a full row except for the last one. Drops empty documents.

    >>> _cut_long(Documents(np.arange(10), np.array([7, 0, 3])), max_length=3).lengths
    array([3, 3, 1, 3])
    """
    counts = -(-documents.lengths // max_length)  # pieces per document
    lengths = np.full(int(counts.sum()), max_length, np.int64)
    # The last piece of a document has the tokens that remain after the full ones.
    is_last = np.cumsum(counts)[counts > 0] - 1
    lengths[is_last] = (documents.lengths - (counts - 1) * max_length)[counts > 0]
    columns = selected_columns(documents.columns, np.repeat(np.arange(len(counts)), counts))
    return Documents(documents.ids, lengths, columns)


def one_per_row(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and offsets (int64 [pieces]) that give each piece a row of its own."""
    return np.arange(len(lengths)), np.zeros(len(lengths), np.int64)


def best_fit(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Best-fit-decreasing bin packing (Johnson, 1973).

    The longest piece goes first, always into the fullest row that has room for it. All pieces of one length are placed
    together. A row with free space s takes s // length of them at once: placed one by one they would go to the same
    row, because the row that was just used is the fullest. So the work grows with the number of different lengths, not
    with the number of pieces.

    In rows of 10 tokens, the pieces of 7, 5 and 4 are placed in this order: 5 does not fit the row of 7, and 4 goes to
    the row of 5, which has room for it. Finally, 3 goes to the row of 7:

    >>> best_fit(np.array([3, 7, 4, 5]), max_length=10)
    (array([0, 0, 1, 1]), array([7, 0, 5, 0]))

    Args:
        lengths: Integers [pieces], each from 1 to `max_length`.
        max_length: The size of a row.

    Returns:
        Each piece's row and its offset in the row, int64 [pieces] each. Rows are numbered in the order of their first
        piece.
    """
    rows = np.zeros(len(lengths), np.int64)
    offsets = np.zeros(len(lengths), np.int64)
    # Sort the pieces by length, longest first, and find where each length begins.
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    length_starts = np.flatnonzero(np.diff(ordered, prepend=max_length + 1))
    open_rows = _OpenRows()
    count = 0
    for start, end in pairwise([*length_starts.tolist(), len(ordered)]):
        length, pieces = int(ordered[start]), order[start:end]
        while len(pieces):
            # Take the fullest rows with enough space. If there are none, open as many rows as these pieces need.
            space, chosen_rows = open_rows.pop_fullest(length)
            if not len(chosen_rows):
                space = max_length
                chosen_rows = np.arange(count, count + -(-len(pieces) // (max_length // length)))
                count += len(chosen_rows)
            # Fill these rows one after the other until the pieces or the rows run out.
            per_row = space // length
            num_used = min(len(chosen_rows), -(-len(pieces) // per_row))
            placed, pieces = pieces[: num_used * per_row], pieces[num_used * per_row :]
            rows[placed] = np.repeat(chosen_rows[:num_used], per_row)[: len(placed)]
            offset_in_space = np.tile(np.arange(per_row) * length, num_used)[: len(placed)]
            offsets[placed] = max_length - space + offset_in_space
            # Put the rows back with their remaining space: those with `per_row` pieces, the last one, which may
            # have fewer pieces, and the unused ones.
            pieces_in_last = len(placed) - (num_used - 1) * per_row
            open_rows.add(space - per_row * length, chosen_rows[: num_used - 1])
            open_rows.add(space - pieces_in_last * length, chosen_rows[num_used - 1 : num_used])
            open_rows.add(space, chosen_rows[num_used:])
    # Number the rows in the order of their first piece.
    first_piece = np.full(count, len(lengths), np.int64)
    np.minimum.at(first_piece, rows, np.arange(len(lengths)))
    row_numbers = np.empty(count, np.int64)
    row_numbers[np.argsort(first_piece, kind="stable")] = np.arange(count)
    return row_numbers[rows], offsets


class _OpenRows:
    """Rows that have free space, grouped by the amount of it."""

    def __init__(self):
        self._rows: dict[int, list[np.ndarray]] = {}  # rows by their free space
        self._spaces = 0  # bit s is set if there are rows with free space s

    def add(self, space: int, rows: np.ndarray) -> None:
        """Adds rows (int64 [rows]) that have this much free space. Full rows are ignored."""
        if space and len(rows):
            self._rows.setdefault(space, []).append(rows)
            self._spaces |= 1 << space

    def pop_fullest(self, length: int) -> tuple[int, np.ndarray]:
        """Removes the fullest rows that have room for `length` tokens. Returns their free space, and the rows."""
        fitting = self._spaces >> length
        if not fitting:
            return 0, np.empty(0, np.int64)
        # The lowest set bit is the smallest sufficient space.
        space = length + (fitting & -fitting).bit_length() - 1
        self._spaces &= ~(1 << space)
        return space, np.concatenate(self._rows.pop(space))


def pack_stream(
    ids: np.ndarray, starts: np.ndarray, max_length: int, keep_starts: bool
) -> tuple[RowBlock, Tail]:
    """Cuts a stream of tokens into full rows. Documents may cross rows.

    Documents of 3, 4 and 3 tokens, in rows of 4:

    >>> block, tail = pack_stream(np.arange(10, 20), np.array([0, 3, 7]), max_length=4, keep_starts=False)
    >>> block.ids.tolist(), tail.ids.tolist(), tail.starts.tolist()
    ([[10, 11, 12, 13], [14, 15, 16, 17]], [18, 19], [])

    Args:
        ids: Integers [tokens].
        starts: int64, ascending: where documents begin in `ids`.
        max_length: Tokens in a row.
        keep_starts: Whether the rows record where documents begin.

    Returns:
        The full rows, and the tail. Together they contain every token once, in order.
    """
    rows = len(ids) // max_length
    num_packed = rows * max_length
    block = RowBlock(
        ids=ids[:num_packed].reshape(rows, max_length),
        lengths=np.full(rows, max_length, np.uint32),
        starts=start_bits(starts[starts < num_packed], rows, max_length) if keep_starts else None,
    )
    return block, Tail(ids[num_packed:].copy(), starts[starts >= num_packed] - num_packed)


def start_bits(positions: np.ndarray, rows: int, max_length: int) -> np.ndarray:
    """Returns packed bits, uint8 [rows, ceil(max_length / 8)], set at these positions of the concatenated rows.

    >>> start_bits(np.array([0, 3, 9]), rows=2, max_length=8)
    array([[144],
           [ 64]], dtype=uint8)
    """
    flags = np.zeros((rows, max_length), bool)
    flags.reshape(-1)[positions] = True
    return np.packbits(flags, axis=1)


def segments_and_positions(block: RowBlock) -> tuple[np.ndarray, np.ndarray]:
    """Computes the features `segment_ids` and `position_ids` of a block that records starts.

    A row of 5 positions with documents of 2 and 2 tokens, and padding:

    >>> bits = start_bits(np.array([0, 2]), rows=1, max_length=5)
    >>> block = RowBlock(np.array([[7, 8, 9, 9, 0]], np.uint16), np.array([4], np.uint32), bits)
    >>> segments_and_positions(block)
    (array([[1, 1, 2, 2, 0]]), array([[0, 1, 0, 1, 0]]))

    Returns:
        int64 [rows, max_length] each. Segments count from 1 in each row, positions from 0 in each segment; both are 0
        for padding.
    """
    max_length = block.ids.shape[1]
    flags = np.unpackbits(block.starts, axis=1, count=max_length).astype(bool)
    flags[:, 0] = True  # a document that continues from the row before is a segment of its own here
    columns = np.arange(max_length)
    attended = columns < block.lengths[:, None]
    segments = np.cumsum(flags, axis=1)
    # The latest column at or before each column at which a segment begins.
    begins = np.maximum.accumulate(np.where(flags, columns, 0), axis=1)
    return np.where(attended, segments, 0), np.where(attended, columns - begins, 0)
