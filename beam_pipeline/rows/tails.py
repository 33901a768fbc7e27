"""Tails: what is left at the ends of the units, packed again into rows that are ranked after all others.

A split's tails, in the order of their units, are one stream of tokens. It is cut into rows at multiples of
`max_length`, so only its very last row may need padding. The tails' sizes say where in the stream each tail is:
hence the stream can be packed in blocks, each by itself, and no element ever holds all tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Tail, start_bits

# A part of a tail that is in one block: (its position in the block, its tokens and where segments begin among them).
Piece = tuple[int, Tail]


class TailTable:
    """The size of each unit's tail, and so its place in its split's stream of tails.

    Args:
      sizes: int64 [units, splits], tokens.
    """

    def __init__(self, sizes: np.ndarray):
        self.sizes = np.asarray(sizes, np.int64)
        self._ends = np.cumsum(self.sizes, axis=0)

    def first_token(self, unit: int, split: int) -> int:
        """The position of the unit's tail in the stream of its split."""
        return int(self._ends[unit, split] - self.sizes[unit, split])

    @property
    def totals(self) -> np.ndarray:
        """int64 [splits]: tokens in the tails of each split."""
        return self.sizes.sum(axis=0)

    def to_bytes(self) -> bytes:
        return np.int64(self.sizes.shape[1]).tobytes() + self.sizes.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> TailTable:
        splits = int(np.frombuffer(data, np.int64, 1)[0])
        return cls(np.frombuffer(data, np.int64, offset=8).reshape(-1, splits))

    def __reduce__(self) -> tuple[Callable[..., TailTable], tuple[bytes]]:
        return TailTable.from_bytes, (self.to_bytes(),)


def cut_tail(tail: Tail, first_token: int, block_tokens: int) -> Iterator[tuple[int, Piece]]:
    """Cuts a tail where blocks of its split's stream end.

    A tail that begins in the middle of a document begins a segment of its own here, since the document's other tokens
    are in another row.

    Args:
      tail: of one unit, at least one token.
      first_token: its position in the stream.
      block_tokens: tokens in a block, a multiple of `max_length`.

    Yields:
      (block number, the piece of the tail that belongs there).
    """
    starts = np.union1d([0], tail.starts)
    end = first_token + len(tail.ids)
    for block in range(first_token // block_tokens, -(-end // block_tokens)):
        low = max(0, block * block_tokens - first_token)
        high = min(end, (block + 1) * block_tokens) - first_token
        inside = starts[(starts >= low) & (starts < high)] - low
        yield block, (first_token + low - block * block_tokens, Tail(tail.ids[low:high], inside))


def pack_pieces(
    pieces: Iterable[Piece], *, tokens: int, max_length: int, pad_id: int, keep_starts: bool, dtype: np.dtype
) -> RowBlock:
    """Packs one block of a stream of tails into rows; only the last may need padding.

    Args:
      pieces: of the block, in any order.
      tokens: in the block.
      max_length: tokens in a row.
      pad_id: fills up the last row.
      keep_starts: whether the rows record where documents begin.
      dtype: of the ids.

    Raises:
      AssertionError: if the pieces do not fill the block: a tail was lost or doubled on its way.
    """
    rows = -(-tokens // max_length)
    ids = np.full(rows * max_length, pad_id, dtype)
    filled, positions = 0, []
    for position, part in pieces:
        ids[position : position + len(part.ids)] = part.ids
        filled += len(part.ids)
        positions.append(part.starts + position)
    if filled != tokens:
        raise AssertionError(
            f"{filled} tokens of tails where there must be {tokens}: tails were lost or doubled"
        )
    lengths = np.full(rows, max_length, np.uint32)
    lengths[-1] = tokens - (rows - 1) * max_length
    bits = start_bits(np.concatenate(positions), rows, max_length) if keep_starts else None
    return RowBlock(ids.reshape(rows, max_length), lengths, bits)
