"""The order of the rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_trainer.data.order import Order, Place, host_shards
from tpu_trainer.support.errors import UsageError

COUNTS = st.lists(st.integers(0, 9), min_size=4, max_size=12).filter(
    lambda counts: np.count_nonzero(counts) >= 3
)


def stream(order: Order, length: int, position: int = 0) -> list[int]:
    """The first `length` row ids from `position` on."""
    rows = itertools.chain.from_iterable(window.row_ids.tolist() for window in order.windows(position))
    return list(itertools.islice(rows, length))


@given(counts=COUNTS, seed=st.integers(0, 2**32 - 1), window=st.integers(1, 5), hosts=st.integers(1, 3))
def test_every_row_comes_once_an_epoch(counts: list[int], seed: int, window: int, hosts: int) -> None:
    total = sum(counts)
    seen, lengths = [[], []], []
    for host in range(hosts):
        order = Order(counts=np.array(counts), seed=seed, window_shards=window, host=host, hosts=hosts)
        ends = [sum(order.locate(p).epoch < epoch for p in range(2 * total + 1)) for epoch in (1, 2)]
        rows = stream(order, ends[1])
        for epoch, part in enumerate((rows[: ends[0]], rows[ends[0] :])):
            assert set(np.searchsorted(np.cumsum(counts), part, side="right")) == set(order.shards(epoch))
            seen[epoch] += part
        lengths.append(ends)
    assert all(sorted(rows) == list(range(total)) for rows in seen)
    # No host runs ahead of the others.
    assert max(first for first, _ in lengths) - min(first for first, _ in lengths) <= 1
    assert max(second for _, second in lengths) - min(second for _, second in lengths) <= 1


@given(shards=st.integers(6, 20), hosts=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_hosts_share_no_more_shards_than_they_must(shards: int, hosts: int, seed: int) -> None:
    readers = np.zeros(shards, int)
    for host in range(hosts):
        order = Order(counts=np.full(shards, 60), seed=seed, window_shards=4, host=host, hosts=hosts)
        readers[order.shards(0)] += 1
    assert (readers >= 1).all()
    assert np.count_nonzero(readers > 1) == shards % hosts


@given(
    shards=st.integers(6, 30),
    last=st.integers(1, 8),
    window=st.integers(1, 4),
    hosts=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    share=st.floats(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_another_number_of_hosts_loses_or_repeats_a_window_at_most(
    shards: int, last: int, window: int, hosts: tuple[int, int], share: float, seed: int
) -> None:
    """A run goes on with other hosts after `share` epochs: each row of the epoch it was in is read once, but for those
    of the windows that the hosts were in (shards are shared out unevenly where hosts do not divide them: one more)."""
    counts = np.array([8] * (shards - 1) + [last])
    total, batch = int(counts.sum()), 60  # which all numbers of hosts divide
    steps = int(share * total / batch)
    read = np.zeros(total, int)
    for number, continued in ((hosts[0], False), (hosts[1], True)):
        for host in range(number):
            order = Order(counts=counts, seed=seed, window_shards=window, host=host, hosts=number)
            start, rows = epoch_of(order, steps * batch // number)
            taken = steps * batch // number - start
            np.add.at(read, rows[taken:] if continued else rows[:taken], 1)
    bound = window * 8 * (max(hosts) + 1)
    assert (read == 0).sum() <= bound
    assert (read > 1).sum() <= bound
    if hosts[0] == hosts[1]:
        assert (read == 1).all()


def epoch_of(order: Order, position: int) -> tuple[int, np.ndarray]:
    """Where the epoch of `position` starts in the host's stream, and the epoch's row ids."""
    epoch, start = order.locate(position).epoch, position
    while start and order.locate(start - 1).epoch == epoch:
        start -= 1
    rows, end = [], start
    for window in order.windows(start):
        if order.locate(end).epoch != epoch:
            return start, np.concatenate(rows)
        rows.append(window.row_ids)
        end += window.row_ids.size
    raise AssertionError("the stream has no end")


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
def test_evaluation_gives_each_shard_with_rows_to_one_host(counts: list[int], hosts: int) -> None:
    per_host = [host_shards(np.array(counts), host=host, hosts=hosts).tolist() for host in range(hosts)]
    assert all(shards == sorted(shards) for shards in per_host)
    assert sorted(itertools.chain.from_iterable(per_host)) == np.flatnonzero(counts).tolist()
