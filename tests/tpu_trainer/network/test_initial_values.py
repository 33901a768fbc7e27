"""Postponed initial values are the bits that variables get at once, and need no memory before."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.network import initial_values
from tpu_trainer.network.initial_values import InitialValues


def draw(shape: list[int], seed: int) -> np.ndarray:
    return tf.random.stateless_normal(shape, seed=[seed, 1], alg="philox").numpy()


@pytest.fixture
def postpone_small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_values, "_LEAST_ELEMENTS", 2)


@pytest.mark.usefixtures("postpone_small_values")
def test_postponed_values_are_the_same_bits() -> None:
    at_once, postponed = InitialValues(), InitialValues(postpone=True)
    makers = {
        "drawn": partial(draw, [3, 4], 0),
        "stack": partial(draw, [2, 3, 4], 1),
        "tensor": lambda: tf.fill([4], 0.1),
        "double": lambda: np.full([4], 0.1),  # converted to the variable's type
    }
    expected, actual = (
        {name: initial.variable(name, make().shape, make) for name, make in makers.items()}
        for initial in (at_once, postponed)
    )
    counter = postponed.variable("step", [], lambda: np.int64(3), trainable=False, dtype=tf.int64)
    assert (counter.dtype, int(counter.numpy()), counter.trainable) == (tf.int64, 3, False)
    for name, variable in actual.items():
        value, bits = postponed.value(variable), expected[name].numpy().tobytes()
        assert (value.dtype, value.tobytes(), value.shape) == (np.float32, bits, tuple(variable.shape))
        assert postponed.value(variable).tobytes() == bits  # again
        assert at_once.value(expected[name]).tobytes() == bits
        assert not variable.numpy().any()  # it has no value of its own
        assert (variable.name, variable.trainable) == (f"{name}:0", True)


@pytest.mark.usefixtures("postpone_small_values")
def test_what_is_assigned_while_values_are_postponed_counts() -> None:
    initial = InitialValues(postpone=True)
    assigned, copy = (initial.variable(name, [4], lambda: np.zeros(4)) for name in ("assigned", "copy"))
    initial.assign(assigned, lambda: np.full(4, 3.0))
    initial.copy(assigned, target=copy)
    small = initial.variable("small", [], lambda: 1.0)
    initial.assign(small, lambda: 2.0)
    for variable, expected in ((assigned, 3), (copy, 3), (small, 2)):
        np.testing.assert_array_equal(initial.value(variable), expected)
    initial.release()
    with pytest.raises(RuntimeError, match="the initial values are released"):
        initial.value(copy)
    assert initial.value(small) == 2


def test_a_value_of_another_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the initial value of 'a/b' has shape \(2,\), not \[3\]"):
        InitialValues().variable("a/b", [3], lambda: np.zeros(2))


def test_a_large_model_needs_no_memory_before_its_values_are_asked_for() -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before, initial = resident(), InitialValues(postpone=True)
    variables = [
        initial.variable(str(number), [4 << 20], lambda: np.ones(4 << 20, np.float32)) for number in range(32)
    ]
    assert resident() - before < 128 << 10  # KiB; of 512 MiB
    assert initial.value(variables[0]).all()


def test_a_postponed_stack_can_be_larger_than_the_memory() -> None:
    shape = [1 << 10, 1 << 14, 1 << 14]  # 1 TB
    stack = InitialValues(postpone=True).variable("stack", shape, lambda: pytest.fail("computed"))
    assert stack.shape == shape
