import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.rows.packing import Tail, start_bits
from beam_pipeline.rows.tails import TailTable, cut_tail, pack_pieces

PAD = 0
MAX_LENGTH = 8

# For each unit's tail, which of its tokens begin a document.
tail_lists = st.lists(st.lists(st.booleans(), max_size=MAX_LENGTH - 1).map(np.array), min_size=1, max_size=30)


@given(tail_lists, st.integers(1, 5), st.booleans(), st.randoms())
def test_blocks_of_tails_are_the_stream_of_all_tails_cut_up(flags, rows_in_block, keep_starts, order):
    sizes = np.array([len(flag) for flag in flags], np.int64)
    stream = np.arange(1, sizes.sum() + 1, dtype=np.uint16)
    tails = [
        Tail(ids, np.flatnonzero(flag))
        for ids, flag in zip(np.split(stream, np.cumsum(sizes)[:-1]), flags, strict=True)
    ]
    table = TailTable(sizes[:, None])
    pieces: dict[int, list] = {}
    for unit, tail in enumerate(tails):
        if len(tail.ids):
            for block, piece in cut_tail(tail, table.first_token(unit, 0), rows_in_block * MAX_LENGTH):
                pieces.setdefault(block, []).append(piece)
    total = int(table.totals[0])
    assert sorted(pieces) == list(range(-(-total // (rows_in_block * MAX_LENGTH))))
    packed = []
    for block in sorted(pieces):
        order.shuffle(pieces[block])
        tokens = min(rows_in_block * MAX_LENGTH, total - block * rows_in_block * MAX_LENGTH)
        packed.append(
            pack_pieces(
                pieces[block],
                tokens=tokens,
                max_length=MAX_LENGTH,
                pad_id=PAD,
                keep_starts=keep_starts,
                dtype=stream.dtype,
            )
        )
    if not packed:
        return
    # The reference: the whole stream, packed at once.
    rows = -(-total // MAX_LENGTH)
    padded_stream = np.concatenate([stream, np.full(rows * MAX_LENGTH - total, PAD, np.uint16)])
    assert np.array_equal(
        np.concatenate([block.ids for block in packed]), padded_stream.reshape(rows, MAX_LENGTH)
    )
    lengths = np.concatenate([block.lengths for block in packed])
    assert (lengths[:-1] == MAX_LENGTH).all() and lengths.sum() == total
    if keep_starts:
        tail_starts = (np.cumsum(sizes) - sizes)[sizes > 0]
        document_begins = [
            first + tail.starts for first, tail in zip(np.cumsum(sizes) - sizes, tails, strict=True)
        ]
        expected = start_bits(np.union1d(tail_starts, np.concatenate(document_begins)), rows, MAX_LENGTH)
        assert np.array_equal(np.concatenate([block.starts for block in packed]), expected)


def test_a_lost_tail_is_an_error():
    ((_, piece),) = cut_tail(Tail(np.arange(5, dtype=np.uint16), np.array([], np.int64)), 3, 64)
    with pytest.raises(AssertionError, match="a block of tails has 5 tokens instead of 8"):
        pack_pieces([piece], tokens=8, max_length=8, pad_id=0, keep_starts=False, dtype=np.dtype(np.uint16))
