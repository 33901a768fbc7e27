"""The order of the rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_trainer.errors import UsageError
from tpu_trainer.order import Order, Place, in_sequence

COUNTS = st.lists(st.integers(0, 9), min_size=4, max_size=12).filter(
    lambda counts: np.count_nonzero(counts) >= 3
)


def stream(order: Order, length: int, position: int = 0) -> list[int]:
    """The first `length` row ids from `position` on."""
    rows = itertools.chain.from_iterable(window.row_ids.tolist() for window in order.windows(position))
    return list(itertools.islice(rows, length))


@given(counts=COUNTS, seed=st.integers(0, 2**32 - 1), window=st.integers(1, 5), hosts=st.integers(1, 3))
def test_every_row_comes_once_an_epoch(counts: list[int], seed: int, window: int, hosts: int) -> None:
    starts = np.cumsum(counts) - counts
    seen = []
    for host in range(hosts):
        order = Order(counts=np.array(counts), seed=seed, window_shards=window, host=host, hosts=hosts)
        share = int(sum(counts[shard] for shard in order.shards(0)))
        rows = stream(order, share)
        own = {int(starts[s]) + slot for s in order.shards(0) for slot in range(counts[s])}
        assert set(rows) == own
        seen += rows
    assert sorted(seen) == list(range(sum(counts)))


@given(counts=COUNTS, position=st.integers(0, 400), window=st.integers(1, 5))
def test_resuming_is_skipping(counts: list[int], position: int, window: int) -> None:
    order = Order(counts=np.array(counts), seed=3, window_shards=window)
    assert stream(order, 50, position) == stream(order, position + 50)[position:]


def test_places_in_a_window_are_those_rows() -> None:
    counts = np.array([3, 5, 2])
    starts = np.cumsum(counts) - counts
    window = next(Order(counts=counts, seed=0, window_shards=3).windows())
    concatenated = np.concatenate([starts[shard] + np.arange(counts[shard]) for shard in window.shards])
    np.testing.assert_array_equal(concatenated[window.rows], window.row_ids)


def test_seed_and_epoch_change_the_order() -> None:
    counts = np.full(10, 20)
    first = stream(Order(counts=counts, seed=0, window_shards=4), 400)
    other = stream(Order(counts=counts, seed=1, window_shards=4), 200)
    assert first[:200] != first[200:]
    assert first[:200] != other
    assert first[:200] != list(range(200))


def test_the_order_is_the_same_in_every_version() -> None:
    # A run resumed under another release must not meet other rows: these were written down once.
    order = Order(counts=np.array([4, 4, 4]), seed=7, window_shards=2)
    assert stream(order, 24) == [7, 6, 4, 2, 1, 3, 5, 0, 10, 9, 8, 11, 2, 5, 7, 3, 6, 1, 4, 0, 9, 11, 10, 8]


def test_place_of_a_position() -> None:
    order = Order(counts=np.array([4, 4, 4]), seed=7, window_shards=2)
    assert order.locate(0) == Place(epoch=0, window=0, offset=0)
    assert order.locate(9) == Place(epoch=0, window=1, offset=1)
    assert order.locate(12) == Place(epoch=1, window=0, offset=0)
    assert order.locate(12 * 1000 + 8) == Place(epoch=1000, window=1, offset=0)


def test_more_hosts_than_shards() -> None:
    with pytest.raises(UsageError, match="2 shards with rows for 3 hosts"):
        Order(counts=np.array([4, 0, 4]), seed=0, window_shards=1, host=0, hosts=3)


@given(counts=COUNTS, hosts=st.integers(1, 3))
def test_evaluation_reads_every_row_in_sequence(counts: list[int], hosts: int) -> None:
    per_host = [
        [
            row
            for window in in_sequence(counts=np.array(counts), host=host, hosts=hosts)
            for row in window.row_ids
        ]
        for host in range(hosts)
    ]
    assert all(rows == sorted(rows) for rows in per_host)
    assert sorted(itertools.chain.from_iterable(per_host)) == list(range(sum(counts)))
