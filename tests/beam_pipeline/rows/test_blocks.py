import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from beam_pipeline.engines.token_arrays import id_dtype
from beam_pipeline.rows.blocks import RowBlock, rows_checksum

blocks = st.integers(0, 5).flatmap(
    lambda rows: st.builds(
        RowBlock,
        ids=arrays(np.uint32, (rows, 10)) | arrays(np.uint16, (rows, 10)),
        lengths=arrays(np.uint32, rows),
        starts=st.none() | arrays(np.uint8, (rows, 2)),
        slots=st.none() | arrays(np.uint32, rows),
    )
)


@given(blocks)
def test_bytes_round_trip(block):
    decoded_block = RowBlock.from_bytes(b"".join(block.parts()))
    for name in ("ids", "lengths", "starts", "slots"):
        before, after = getattr(block, name), getattr(decoded_block, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert before.dtype == after.dtype and np.array_equal(before, after)


def test_checksum_adds_up_whatever_the_order_and_the_dtype():
    rng = np.random.default_rng(0)
    ids, lengths = rng.integers(0, 500, (3000, 16)), rng.integers(1, 17, 3000)
    checksum = rows_checksum(ids.astype(np.uint16), lengths)
    order = rng.permutation(3000)
    parts = [rows_checksum(ids[part], lengths[part]) for part in np.split(order, [700, 701, 2000])]
    assert sum(parts) % 2**64 == checksum


def test_checksum_sees_each_change():
    ids, lengths = np.arange(32).reshape(2, 16), np.array([16, 9])
    checksum = rows_checksum(ids, lengths)
    swapped = ids.copy()
    swapped[0, [3, 4]] = swapped[0, [4, 3]]
    assert rows_checksum(swapped, lengths) != checksum
    assert rows_checksum(ids, np.array([16, 8])) != checksum
    assert rows_checksum(ids[[0, 0]], lengths[[0, 0]]) != checksum


def test_ids_take_two_bytes_where_they_fit():
    assert id_dtype(65536) == np.uint16 and id_dtype(65537) == np.uint32
