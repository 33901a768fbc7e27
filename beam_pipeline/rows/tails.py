"""Tails: the remaining tokens at the ends of the work units, packed into rows that are ranked after all others.

The tails of a split, in the order of their units, form one stream of tokens. It is cut into rows at multiples of
`max_length`, so only the very last row may need padding. The sizes of the tails determine where each tail is in the
stream. So the stream can be packed in independent blocks, and no element ever contains all tails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Tail, start_bits

TailPiece = tuple[int, Tail]
"""The part of a tail that is in one block: (its position in the block, its tokens and the starts of their segments)."""


class TailTable:
    """The size of each unit's tail, which determines the tail's position in its split's stream.

    Args:
        sizes: int64 [units, splits], in tokens.
    """

    def __init__(self, sizes: np.ndarray):
        self.sizes = np.asarray(sizes, np.int64)
        self._ends = np.cumsum(self.sizes, axis=0)

    def first_token(self, unit: int, split: int) -> int:
        """Returns the position of the unit's tail in the stream of its split."""
        return int(self._ends[unit, split] - self.sizes[unit, split])

    @property
    def totals(self) -> np.ndarray:
        """int64 [splits]: the number of tokens in the tails of each split."""
        return self.sizes.sum(axis=0)

    def __reduce__(self) -> tuple[type[TailTable], tuple[np.ndarray]]:
        return TailTable, (self.sizes,)


def cut_tail(tail: Tail, first_token: int, block_tokens: int) -> Iterator[tuple[int, TailPiece]]:
    """Cuts a tail at the boundaries of its split's blocks.

    A tail that begins within a document begins a segment of its own, since the document's other tokens are in another
    row. A tail of 5 tokens at position 6 of a stream with blocks of 8 is in two blocks:

    >>> tail = Tail(np.array([5, 6, 7, 8, 9]), np.array([3]))
    >>> for block, (position, piece) in cut_tail(tail, first_token=6, block_tokens=8):
    ...     print(block, position, piece.ids, piece.starts)
    0 6 [5 6] [0]
    1 0 [7 8 9] [1]

    Args:
        tail: The tail of one unit, with at least one token.
        first_token: The tail's position in the stream.
        block_tokens: Tokens in a block, a multiple of `max_length`.

    Yields:
        (block number, the piece of the tail that is in the block).
    """
    starts = np.union1d([0], tail.starts)
    end = first_token + len(tail.ids)
    # For each block that the tail touches: [low, high) is the part of the tail that is in the block.
    for block in range(first_token // block_tokens, -(-end // block_tokens)):
        low = max(0, block * block_tokens - first_token)
        high = min(end, (block + 1) * block_tokens) - first_token
        piece_starts = starts[(starts >= low) & (starts < high)] - low
        yield block, (first_token + low - block * block_tokens, Tail(tail.ids[low:high], piece_starts))


def pack_pieces(
    pieces: Iterable[TailPiece],
    *,
    tokens: int,
    max_length: int,
    pad_id: int,
    keep_starts: bool,
    dtype: np.dtype,
) -> RowBlock:
    """Packs one block of a stream of tails, with `tokens` tokens, into rows. Only the last row may need padding.

    Raises:
        AssertionError: If the pieces do not fill the block exactly, so a tail was lost or duplicated.
    """
    rows = -(-tokens // max_length)
    ids = np.full(rows * max_length, pad_id, dtype)
    num_tokens, positions = 0, []
    for position, piece in pieces:
        ids[position : position + len(piece.ids)] = piece.ids
        num_tokens += len(piece.ids)
        positions.append(piece.starts + position)
    if num_tokens != tokens:
        raise AssertionError(
            f"a block of tails has {num_tokens} tokens instead of {tokens}: tails were lost or duplicated"
        )
    lengths = np.full(rows, max_length, np.uint32)
    lengths[-1] = tokens - (rows - 1) * max_length
    bits = start_bits(np.concatenate(positions), rows, max_length) if keep_starts else None
    return RowBlock(ids.reshape(rows, max_length), lengths, bits)
