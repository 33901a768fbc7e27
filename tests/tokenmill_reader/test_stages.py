"""Mixtures whose weights change from stage to stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenmill_reader.test_order import COUNTS, SEEDS, Counts
from tests.tokenmill_reader.written import random_rows, write_split
from tokenmill_reader import DatasetError, Mixture, Order
from tokenmill_reader.mixture import PERIOD, Stage, schedule

WEIGHTS = st.sampled_from([0.0, 0.3, 1.0, 5.0])


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Up to four datasets and stages; later stages read datasets that earlier ones do not."""
    datasets = [Counts(counts) for counts in draw(st.lists(COUNTS, min_size=1, max_size=4))]
    count = draw(st.integers(1, 4))
    rows = sorted(draw(st.sets(st.integers(1, 400), min_size=count - 1, max_size=count - 1)))
    # Dataset d is first read in this stage.
    first_stages = [0, *sorted(draw(st.integers(0, count - 1)) for _ in datasets[1:])]
    weights = [
        [
            1.0 if first == stage or (stage and not dataset) else draw(WEIGHTS) if first < stage else 0
            for dataset, first in enumerate(first_stages)
        ]
        for stage in range(count)
    ]
    if count == 1:
        return Mixture(datasets, weights[0])
    return Mixture(datasets, weights[0], stages=list(zip(rows, weights[1:], strict=True)))


def naive_stream(mixture: Mixture, *, seed: int, window: int, batch_size: int, steps: int) -> list[list[int]]:
    """The rows of each step, one after the other: each is the next one of its dataset's own order."""
    orders = [
        Order(dataset, seed=(seed + number * 0x9E3779B9) % 2**32, window=window, batch_size=1)
        for number, dataset in enumerate(mixture.datasets)
    ]
    cursors = [0] * len(orders)
    rows = []
    for step in range(steps):
        shares = [stage.shares for stage in mixture.stages if stage.first_row <= step * batch_size][-1]
        choices = schedule(shares, seed=seed)
        rows.append([])
        for position in range(step * batch_size, (step + 1) * batch_size):
            chosen = int(choices[position % PERIOD])
            offset = sum(len(dataset) for dataset in mixture.datasets[:chosen])
            rows[-1].append(offset + int(orders[chosen].rows(cursors[chosen])[0]))
            cursors[chosen] += 1
    return rows


@given(mixture=mixtures(), seed=SEEDS, window=st.integers(1, 4), batch_size=st.integers(1, 12))
def test_each_row_is_the_next_one_of_its_dataset(
    mixture: Mixture, seed: int, window: int, batch_size: int
) -> None:
    steps = 500 // batch_size
    order = Order(mixture, seed=seed, window=window, batch_size=batch_size)
    expected = naive_stream(mixture, seed=seed, window=window, batch_size=batch_size, steps=steps)
    assert [order.rows(step).tolist() for step in reversed(range(steps))] == expected[::-1]
    stream = np.concatenate(expected)
    read = [
        stream[(stream >= first) & (stream < first + len(dataset))]
        for first, dataset in zip(mixture.first_rows, mixture.datasets, strict=True)
    ]
    assert order.rows_read(steps).tolist() == [rows.size for rows in read]
    for dataset, rows in zip(mixture.datasets, read, strict=True):
        for start in range(0, rows.size - len(dataset) + 1, len(dataset)):
            assert len(set(rows[start : start + len(dataset)])) == len(dataset)


@given(mixture=mixtures(), seed=SEEDS, change_step=st.integers(1, 40), data=st.data())
def test_stages_and_changes_of_hosts_together_lose_and_repeat_nothing(
    mixture: Mixture, seed: int, change_step: int, data: st.DataObject
) -> None:
    hosts = data.draw(st.tuples(*[st.sampled_from([1, 2, 3, 6])] * 2))
    changes = [(0, hosts[0]), (change_step, hosts[1])]
    read = np.zeros(len(mixture), int)
    for history, steps in ((changes[:1], range(change_step)), (changes, range(change_step, 70))):
        count = history[-1][1]
        for host in range(count):
            order = Order(mixture, seed=seed, batch_size=6, window=2, host=host, hosts=count, changes=history)
            for step in steps:
                np.add.at(read, order.rows(step), 1)
    parts = [
        read[first : first + len(dataset)]
        for first, dataset in zip(mixture.first_rows, mixture.datasets, strict=True)
    ]
    assert all(part.max() - part.min() <= 1 for part in parts)
    assert order.rows_read(70).tolist() == [part.sum() for part in parts]
    assert read.sum() == 70 * 6


@given(mixture=mixtures(), seed=SEEDS, row=st.integers(0, 450))
def test_the_rows_before_a_stage_do_not_depend_on_it(mixture: Mixture, seed: int, row: int) -> None:
    order = Order(mixture, seed=seed, batch_size=4)
    step = -(-row // 4)
    begun = [stage for stage in mixture.stages if stage.first_row < max(row, 1)]
    known = sum(any(stage.shares[number] for stage in begun) for number in range(len(mixture.datasets)))
    added = Counts([3] * 8)
    other = Mixture(
        [*mixture.datasets[:known], added],
        [*begun[0].shares[:known], 0],
        stages=[
            *((stage.first_row, [*stage.shares[:known], 0]) for stage in begun[1:]),
            (max(row, 1), [1] * known + [1]),
        ],
    )
    other_order = Order(other, seed=seed, batch_size=4)
    assert all(order.rows(each).tolist() == other_order.rows(each).tolist() for each in range(step))


def test_fingerprints_name_the_stages_that_have_begun(tmp_path: Path) -> None:
    for number in range(3):
        write_split(tmp_path / str(number), {"input_ids": random_rows(40, 6, seed=number)})
    a, b, c = (tmp_path / str(number) for number in range(3))
    plain = Mixture.open({a: 3, b: 1})
    staged = Mixture.open({a: 3, b: 1}, stages=[(100, {c: 1, a: 4}), (300, {c: 1})])
    assert [dataset.path for dataset in staged.datasets] == [str(each) for each in (a, b, c)]
    assert staged.stages == (
        Stage(0, (7500, 2500, 0)),
        Stage(100, (8000, 0, 2000)),
        Stage(300, (0, 0, PERIOD)),
    )
    assert staged.fingerprint_before(0) == staged.fingerprint_before(100) == plain.fingerprint
    second = Mixture.open({a: 3, b: 1}, stages=[(100, {a: 4, c: 1})]).fingerprint
    assert staged.fingerprint_before(101) == staged.fingerprint_before(300) == second != plain.fingerprint
    assert staged.fingerprint == staged.fingerprint_before(301) != second
    assert Mixture.open({a: 1}, stages=[(5, {b: 1})]).fingerprint_before(5) == plain.datasets[0].fingerprint
    assert repr(staged).endswith(f"from row 100 0.8 of '{a}', 0.2 of '{c}'; from row 300 1 of '{c}')")
    # A stage begins with the first step that does not begin before it.
    order = Order(staged, batch_size=30)
    assert [bool((order.rows(step) >= 80).any()) for step in range(3, 6)] == [False, True, True]
    assert (order.rows(10) >= 80).all() and len(order.rows(10)) == 30


def test_stages_that_make_no_sense() -> None:
    a, b = Counts([4] * 8), Counts([5] * 8)
    with pytest.raises(
        ValueError, match=r"stages must ascend from row 0, but they begin at rows \[0, 9, 9\]"
    ):
        Mixture([a], [1], stages=[(9, [1]), (9, [1])])
    with pytest.raises(ValueError, match="its weight is 0, not a number above 0"):
        Mixture([a, b], [1, 0])
    with pytest.raises(ValueError, match="no stage reads it; remove it"):
        Mixture([a, b], [1, 0], stages=[(9, [1, 0])])
    with pytest.raises(ValueError, match=r"first read in the stages \[1, 0\]"):
        Mixture([a, b], [0, 1], stages=[(9, [1, 1])])
    with pytest.raises(ValueError, match="all weights of a stage are 0"):
        Mixture([a], [1], stages=[(9, [0])])
    with pytest.raises(ValueError, match="1 weights for 2 datasets"):
        Mixture([a, b], [1, 1], stages=[(9, [1])])
    with pytest.raises(DatasetError, match="less than one row in 10000"):
        Mixture([a, b], [1, 1], stages=[(9, [1, 1e-9])])
    with pytest.raises(TypeError, match=r"the first row of a stage is 0\.9, not a whole number"):
        Mixture([a], [1], stages=[(0.9, [1])])
