import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.engines.token_arrays import Documents
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.packing import Packer, Tail, best_fit, segments_and_positions
from beam_pipeline.rows.tails import cut_tail, pack_pieces

PAD = 0
MAX_LENGTH = 8


def make(lengths: list[int]) -> Documents:
    """Makes documents of these lengths in which every token is different."""
    lengths = np.array(lengths, np.int64)
    return Documents(np.arange(1, lengths.sum() + 1, dtype=np.uint16), lengths)


def pack(documents: Documents, **options) -> tuple[RowBlock, Tail]:
    """Returns the rows and the tail of a unit that consists of these documents."""
    packer = Packer(**options)
    assert not list(packer.add(documents))
    block, tail = packer.finish()
    return block, tail or Tail(documents.ids[:0], np.empty(0, np.int64))


def attended_tokens(block: RowBlock) -> np.ndarray:
    return block.ids[np.arange(block.ids.shape[1]) < block.lengths[:, None]]


lengths_lists = st.lists(st.integers(0, 3 * MAX_LENGTH), max_size=40)


@given(lengths_lists, st.sampled_from(["concat", "best_fit", "pad"]), st.booleans())
def test_every_token_stands_in_one_place(lengths, packing, keep_starts):
    documents = make(lengths)
    block, tail = pack(documents, packing=packing, max_length=MAX_LENGTH, pad_id=PAD, keep_starts=keep_starts)
    result = np.concatenate([attended_tokens(block), tail.ids])
    assert np.array_equal(np.sort(result), documents.ids)
    padding = block.ids[np.arange(MAX_LENGTH) >= block.lengths[:, None]]
    assert (padding == PAD).all()
    assert (block.lengths > 0).all()


@given(lengths_lists)
def test_concat_keeps_the_order_and_fills_all_rows(lengths):
    documents = make(lengths)
    block, tail = pack(documents, packing="concat", max_length=MAX_LENGTH, pad_id=PAD, keep_starts=False)
    assert np.array_equal(np.concatenate([block.ids.ravel(), tail.ids]), documents.ids)
    assert len(tail.ids) < MAX_LENGTH
    assert (block.lengths == MAX_LENGTH).all()


@given(st.lists(st.integers(1, MAX_LENGTH), max_size=60))
def test_best_fit_never_cuts_a_document_that_fits(lengths):
    documents = make(lengths)
    block, _ = pack(documents, packing="best_fit", max_length=MAX_LENGTH, pad_id=PAD, keep_starts=True)
    segments, positions = segments_and_positions(block)
    rows = [block.ids[row][segments[row] == number] for row in range(len(block)) for number in range(1, 9)]
    actual = sorted(tuple(tokens) for tokens in rows if len(tokens))
    starts = documents.starts
    expected = sorted(tuple(documents.ids[s : s + n]) for s, n in zip(starts, lengths, strict=True))
    assert actual == expected
    segment_begins = (segments > 0) & (np.diff(segments, axis=1, prepend=0) != 0)
    # Positions count from 0 in each document.
    assert np.array_equal(segment_begins, (positions == 0) & (segments > 0))


@settings(max_examples=200)
@given(st.lists(st.integers(1, 20), max_size=50))
def test_best_fit_equals_the_textbook_one_by_one(lengths):
    lengths = np.array(lengths, np.int64)
    rows, offsets = best_fit(lengths, 20)
    spaces: list[int] = []
    for index in np.argsort(-lengths, kind="stable"):
        rows_with_space = [row for row, space in enumerate(spaces) if space >= lengths[index]]
        if rows_with_space:
            spaces[min(rows_with_space, key=lambda row: spaces[row])] -= lengths[index]
        else:
            spaces.append(20 - lengths[index])
    fill = np.bincount(rows, lengths, minlength=0).astype(int)
    assert sorted(20 - fill) == sorted(spaces)
    # The pieces of a row do not overlap.
    placed_documents = np.concatenate(
        [np.arange(n) + 20 * r + o for n, r, o in zip(lengths, rows, offsets, strict=True)] or [[]]
    )
    assert len(np.unique(placed_documents)) == len(placed_documents)
    # Rows are numbered in the order of their first piece.
    _, first_indices = np.unique(rows, return_index=True)
    assert (np.diff(first_indices) > 0).all()


@given(
    st.lists(lengths_lists, min_size=1, max_size=6),
    st.sampled_from(["concat", "best_fit", "pad"]),
    st.integers(1, 60),
)
def test_rows_do_not_depend_on_how_documents_are_divided_into_calls(units, packing, group):
    documents = make([length for lengths in units for length in lengths])
    options = {"packing": packing, "max_length": MAX_LENGTH, "pad_id": PAD, "keep_starts": True}

    def pack_in(pieces: list[Documents]) -> tuple[list, Tail | None]:
        packer = Packer(**options)
        packer._GROUP_TOKENS = group
        blocks = [block for piece in pieces for block in packer.add(piece)]
        last_block, tail = packer.finish()
        rows = [
            (block.ids.tolist(), block.lengths.tolist(), block.starts.tolist())
            for block in (*blocks, last_block)
        ]
        return [[row for block in column for row in block] for column in zip(*rows, strict=True)], tail

    splits = np.cumsum([len(lengths) for lengths in units])[:-1]
    pieces = [documents.select(index) for index in np.split(np.arange(len(documents.lengths)), splits)]
    (rows, tail), (expected_rows, expected_tail) = pack_in(pieces), pack_in([documents])
    assert rows == expected_rows
    assert (tail is None) == (expected_tail is None)
    if tail is not None:
        assert (
            tail.ids.tolist() == expected_tail.ids.tolist()
            and tail.starts.tolist() == expected_tail.starts.tolist()
        )


def test_segments_and_positions_of_known_rows():
    documents = make([3, 9, 2])
    block, tail = pack(documents, packing="concat", max_length=MAX_LENGTH, pad_id=PAD, keep_starts=True)
    ((_, piece),) = cut_tail(tail, 0, MAX_LENGTH)
    last_block = pack_pieces(
        [piece], tokens=6, max_length=MAX_LENGTH, pad_id=PAD, keep_starts=True, dtype=tail.ids.dtype
    )
    segments, positions = segments_and_positions(block)
    assert segments.tolist() == [[1, 1, 1, 2, 2, 2, 2, 2]]
    assert positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    # The tail continues with the second document (4 tokens), followed by the third.
    segments, positions = segments_and_positions(last_block)
    assert segments.tolist() == [[1, 1, 1, 1, 2, 2, 0, 0]]
    assert positions.tolist() == [[0, 1, 2, 3, 0, 1, 0, 0]]


@pytest.mark.parametrize("packing", ["concat", "best_fit", "pad"])
def test_no_documents_give_no_rows(packing):
    block, tail = pack(make([]), packing=packing, max_length=MAX_LENGTH, pad_id=PAD, keep_starts=True)
    assert block.ids.shape == (0, MAX_LENGTH) and not len(tail.ids)
