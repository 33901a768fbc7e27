"""The order of the rows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenmill_reader.written import random_rows, write_split
from tokenmill_reader import Dataset, DatasetError, Mixture, Order, batches
from tokenmill_reader.mixture import PERIOD, schedule


class Counts(Dataset):
    """A dataset of which only the number of rows in each shard is known."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._description = SimpleNamespace(
            records=np.array(counts), folder=SimpleNamespace(path="counts"), split="train"
        )
        self._ends = np.cumsum(counts)
        self.max_length, self.features = 1, ("input_ids",)

    @property
    def manifest(self) -> None:
        return None


COUNTS = st.lists(st.integers(0, 9), min_size=6, max_size=14).filter(
    lambda counts: np.count_nonzero(counts) >= 6
)
SEEDS = st.integers(0, 2**32 - 1)


def test_the_order_is_the_same_in_every_version() -> None:
    # A run resumed under another release must not read other rows: these were written down once.
    order = Order(Counts([4, 4, 4]), seed=7, window=2, batch_size=6)
    rows = np.concatenate([order.rows(step) for step in range(4)])
    assert rows.tolist() == [7, 6, 4, 2, 1, 3, 5, 0, 10, 9, 8, 11, 2, 5, 7, 3, 6, 1, 4, 0, 9, 11, 10, 8]
    mixture = Mixture([Counts([5, 9, 0, 3, 8]), Counts([7, 7])], [3, 1])
    for hosts, crc in ((1, 2786277223), (2, 2241723833)):
        orders = [
            Order(mixture, seed=11, window=2, batch_size=8 * hosts, host=host, hosts=hosts)
            for host in range(hosts)
        ]
        steps = [*range(60), *range(5000, 5060)]
        rows = np.concatenate([order.rows(step) for order in orders for step in steps])
        assert zlib.crc32(rows.astype("<i8").tobytes()) == crc


@given(counts=COUNTS, seed=SEEDS, window=st.integers(1, 4), changes=st.data())
def test_changing_the_number_of_hosts_loses_and_repeats_nothing(
    counts: list[int], seed: int, window: int, changes: st.DataObject
) -> None:
    data, total, batch = Counts(counts), sum(counts), 12
    steps = sorted(changes.draw(st.sets(st.integers(1, 3 * total // batch + 1), max_size=4)))
    hosts = [changes.draw(st.sampled_from([1, 2, 3, 4, 6])) for _ in [0, *steps]]
    history = list(zip([0, *steps], hosts, strict=True))
    end_steps = [*steps, steps[-1] + 3 * total // batch + 2] if steps else [3 * total // batch + 2]
    read = np.zeros(total, int)
    for number, (first, count) in enumerate(history):
        orders = [
            Order(
                data,
                seed=seed,
                batch_size=batch,
                window=window,
                host=h,
                hosts=count,
                changes=history[: number + 1],
            )
            for h in range(count)
        ]
        for step in range(first, end_steps[number]):
            before = (step * batch) // total
            for order in orders:
                np.add.at(read, order.rows(step), 1)
            # In every step, each row has been read as often as any other, or once more.
            assert read.min() >= before
            assert read.max() <= -(-(step + 1) * batch // total)
        with pytest.raises(ValueError, match="before the order begins"):
            orders[0].rows(first - 1)
    assert read.sum() == end_steps[-1] * batch


@given(
    counts=st.lists(COUNTS, min_size=2, max_size=3),
    seed=SEEDS,
    change_step=st.integers(1, 40),
    data=st.data(),
)
def test_mixtures_lose_and_repeat_nothing_when_hosts_change(
    counts: list[list[int]], seed: int, change_step: int, data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.2, 3), min_size=len(counts), max_size=len(counts)))
    mixture = Mixture([Counts(dataset_counts) for dataset_counts in counts], weights)
    hosts_before, hosts = data.draw(st.tuples(*[st.sampled_from([1, 2, 3, 6])] * 2))
    read = np.zeros(len(mixture), int)
    for history, steps in (
        ([(0, hosts_before)], range(change_step)),
        ([(0, hosts_before), (change_step, hosts)], range(change_step, change_step + 25)),
    ):
        count = history[-1][1]
        for host in range(count):
            order = Order(mixture, seed=seed, batch_size=6, window=2, host=host, hosts=count, changes=history)
            for step in steps:
                np.add.at(read, order.rows(step), 1)
    for first, dataset_counts in zip(mixture.first_rows, counts, strict=True):
        part = read[first : first + sum(dataset_counts)]
        assert part.max() - part.min() <= 1


@given(shards=st.integers(6, 20), hosts=st.integers(1, 6), seed=SEEDS)
def test_hosts_share_no_more_shards_than_they_must(shards: int, hosts: int, seed: int) -> None:
    readers = np.zeros(shards, int)
    for host in range(hosts):
        order = Order(Counts([60] * shards), seed=seed, batch_size=shards * 60, host=host, hosts=hosts)
        readers[np.unique(order.rows(0) // 60)] += 1
    assert (readers >= 1).all()
    assert np.count_nonzero(readers > 1) == shards % hosts


@given(
    weights=st.lists(st.floats(0.05, 20), min_size=1, max_size=5),
    seed=SEEDS,
    start=st.integers(0, PERIOD),
    length=st.integers(1, 4000),
)
def test_any_stretch_of_the_schedule_holds_every_share(
    weights: list[float], seed: int, start: int, length: int
) -> None:
    shares = Mixture([Counts([9])] * len(weights), weights).shares
    choices = schedule(shares, seed=seed)
    assert np.bincount(choices, minlength=len(weights)).tolist() == list(shares)
    stretch = np.take(choices, np.arange(start, start + length), mode="wrap")
    counts = np.bincount(stretch, minlength=len(weights))
    assert np.abs(counts - np.array(shares) * length / PERIOD).max() <= len(weights)


def test_shares_follow_weights_or_numbers_of_rows() -> None:
    data = [Counts([200]), Counts([90]), Counts([41])]
    assert Mixture(data[:2], [3, 1]).shares == (7500, 2500)
    assert sorted(Mixture(data, [1, 1, 1]).shares) == [3333, 3333, 3334]
    # Rows come equally often: 200 of 331, 90 of 331, 41 of 331.
    assert Mixture(data, [None] * 3).shares == (6042, 2719, 1239)


def test_datasets_of_equal_shape_are_not_read_in_step() -> None:
    order = Order(Mixture([Counts([20] * 10)] * 2, [1, 1]), seed=1, batch_size=400, window=3)
    rows = order.rows(0)
    assert rows[rows < 200].tolist() != (rows[rows >= 200] - 200).tolist()


def test_without_changes_each_step_is_a_function_of_its_number() -> None:
    order = Order(Counts([5] * 9), seed=1, window=2, batch_size=8)
    forward = [order.rows(step).tolist() for step in range(40)]
    second_order = Order(Counts([5] * 9), seed=1, window=2, batch_size=8)
    assert [second_order.rows(step).tolist() for step in reversed(range(40))] == forward[::-1]


def test_epochs_and_seeds_differ() -> None:
    epochs = [
        Order(Counts([20] * 10), seed=0, window=4, batch_size=200).rows(step).tolist() for step in (0, 1)
    ]
    other_seed = Order(Counts([20] * 10), seed=1, window=4, batch_size=200).rows(0).tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(other_seed) == list(range(200))
    assert epochs[0] != epochs[1] and epochs[0] != other_seed


def test_the_batches_of_a_mixture(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("mixture")
    ids = [random_rows(40, 6, seed=seed) for seed in range(2)]
    for number, rows in enumerate(ids):
        write_split(root / str(number), {"input_ids": rows})
    mixture = Mixture.open({root / "0": 3, root / "1": 1})
    assert len(mixture) == 80
    other_weights = Mixture.open({root / "0": 1, root / "1": 1})
    single = Mixture(mixture.datasets[:1], [2])
    assert len({mixture.fingerprint, other_weights.fingerprint, single.fingerprint}) == 3
    assert single.fingerprint == mixture.datasets[0].fingerprint
    assert mixture.path == f"{root}/0, {root}/1"
    order = Order(mixture, batch_size=20, window=2)
    stream = batches(mixture, order, 5)
    for step in range(5, 9):
        batch = next(stream)
        assert batch["row"].tolist() == order.rows(step).tolist()
        np.testing.assert_array_equal(batch["input_ids"], np.concatenate(ids)[batch["row"]])
        assert 4 <= (batch["row"] >= 40).sum() <= 6
    with pytest.raises(IndexError, match="has 80 rows"):
        mixture[[80]]
    write_split(root / "short", {"input_ids": ids[0][:, :5]})
    with pytest.raises(DatasetError, match=r"short: its max_length is 5, but that of .*0 is 6"):
        Mixture.open({root / "0": 1, root / "short": 1})
    with pytest.raises(DatasetError, match="less than one row in 10000"):
        Mixture.open({root / "0": 1e6, root / "1": 1})
    spelled = Mixture.open({f"{root}//0/": 3, root / "1": 1}, stages=[(40, {f"{root}/./0": 1})])
    assert [dataset.path for dataset in spelled.datasets] == [f"{root}/0", f"{root}/1"]
    with pytest.raises(ValueError, match="a folder is repeated"):
        Mixture.open({f"{root}/0/": 1, root / "0": 1})


def test_a_mixture_is_used_like_a_dataset(tmp_path: Path) -> None:
    ids = [random_rows(40, 6, seed=seed) for seed in range(2)]
    for number, rows in enumerate(ids):
        write_split(tmp_path / str(number), {"input_ids": rows})
    mixture, all_ids = Mixture.open({tmp_path / "0": 3, tmp_path / "1": None}), np.concatenate(ids)
    assert (mixture.max_length, mixture.features, len(mixture)) == (6, ("input_ids",), 80)
    for index in (
        0,
        79,
        -1,
        np.int32(41),
        np.array([-1, 3], np.int8),
        [3, -80, 79],
        np.arange(80)[::-1],
        slice(None, None, -9),
        slice(5, 5),
        [],
    ):
        np.testing.assert_array_equal(mixture[index]["input_ids"], all_ids[index].reshape(-1, 6).squeeze())
    np.testing.assert_array_equal([row["input_ids"] for row in mixture], all_ids)
    assert mixture.locate(79) == (f"{tmp_path}/1/{mixture.datasets[1].locate(39)[0]}", 9)
    mixture.verify()
    for index in (1.0, True, "1", None, [True]):
        with pytest.raises(TypeError, match="a row is given by an integer"):
            mixture[index]
    for index in (80, -81, [0, 10**18]):
        with pytest.raises(IndexError, match="has 80 rows, but no row"):
            mixture[index]


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf, True, "1", [1]])
def test_weights_are_positive_numbers(tmp_path: Path, weight: Any) -> None:
    write_split(tmp_path / "train", {"input_ids": random_rows(40, 6)})
    with pytest.raises(ValueError, match=r"train: its weight is .*, not a number above 0"):
        Mixture.open({tmp_path / "train": weight})
    with pytest.raises(ValueError, match="0 weights for 0 datasets"):
        Mixture.open({})


def test_steps_of_any_type_of_integers() -> None:
    order = Order(Counts([50] * 100), batch_size=np.int16(5000), seed=np.int64(3))
    step = 2**31 - 1
    assert order.rows(np.int32(step)).tolist() == order.rows(step).tolist()
    assert order.rows(np.uint8(3)).tolist() == order.rows(3).tolist()
    for wrong_type in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="not a whole number"):
            order.rows(wrong_type)
        with pytest.raises(TypeError, match="not a whole number"):
            Order(Counts([4] * 8), batch_size=8, window=wrong_type)
    for large_step in (2**40, 2**62, 10**30):
        with pytest.raises(ValueError, match=r"is in epoch|is beyond the order's"):
            order.rows(large_step)


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": 2, "hosts": 2},
        {"window": 0},
        {"seed": 2**32},
        {"hosts": 3},
        {"batch_size": 0},
        {"hosts": 2, "changes": [(0, 1), (5, 4)]},
        {"changes": [(1, 1)]},
        {"hosts": 2, "changes": [(0, 1), (0, 2)]},
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict) -> None:
    with pytest.raises(ValueError, match=r"out of range|not a multiple|ascend"):
        Order(Counts([4] * 8), **{"batch_size": 8, **arguments})


def test_more_hosts_than_shards() -> None:
    with pytest.raises(DatasetError, match="2 shards with rows for 4 hosts"):
        Order(Counts([4, 0, 4]), batch_size=8, hosts=4)
