"""Postponed initial values are the bits that variables get at once."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.tpu_trainer.model_types import LENGTH, VOCABULARY, small_config
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, ObjectiveName, OptimizerConfig, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network import initial_values
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.runs.checkpoint import named_variables
from tpu_trainer.step.task import Task
from tpu_trainer.training.build import build_task

VOCAB = Vocabulary(size=VOCABULARY, special_ids=(0, 1, 2, 3, 4), pad_id=1, mask_id=4, bos_id=0, eos_id=2)


def task_of(config: FitConfig, initial: InitialValues | None = None) -> Task:
    counts = np.arange(VOCAB.size, dtype=np.float64) if config.model.init_output_bias else None
    task = build_task(
        config,
        vocabulary=VOCAB,
        max_length=LENGTH,
        token_counts=counts,
        initial=initial,
    )
    if task.average is not None:
        task.average.start(initial)
    return task


@pytest.fixture
def postpone_small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_values, "_LEAST_ELEMENTS", 2)


# Types with redrawn weights, tied tables, sinusoids that their layers assign, and an output bias.
@pytest.mark.parametrize(
    ("objective", "model_type"), [("clm", "gpt2"), ("mlm", "roberta"), ("mlm", "roformer"), ("mlm", "xlm")]
)
@pytest.mark.usefixtures("postpone_small_values")
def test_postponed_values_are_the_same_bits(objective: ObjectiveName, model_type: str) -> None:
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(
            type=model_type, config=small_config(model_type), init_output_bias=model_type == "roberta"
        ),
        optimizer=OptimizerConfig(ema=0.9),
        train=TrainConfig(steps=2, batch_size=2),
    )
    initial = InitialValues()
    with initial.postponed():
        task = task_of(config, initial)
    postponed = named_variables(task.state())
    # As their values are computed later, nothing that was drawn meanwhile may matter.
    expected = {name: variable.numpy() for name, variable in named_variables(task_of(config).state()).items()}
    assert postponed.keys() == expected.keys()
    random = [name for name, value in expected.items() if np.unique(value).size > 2]
    assert random
    for name, value in expected.items():
        actual = initial.value(postponed[name])
        assert (actual.dtype, actual.tobytes()) == (value.dtype, value.tobytes()), name
    assert any(not postponed[name].numpy().any() for name in random)  # they have no values of their own
    other_seed_task = task_of(replace(config, seed=config.seed + 1))
    assert any(
        variable.numpy().tobytes() != expected[name].tobytes()
        for name, variable in named_variables(other_seed_task.state()).items()
    )


@pytest.mark.usefixtures("postpone_small_values")
def test_what_is_assigned_while_values_are_postponed_counts() -> None:
    initial = InitialValues()
    with initial.postponed():
        zeros, assigned = (tf.Variable(tf.zeros([4]), name=name) for name in ("zeros", "one"))
        constant = tf.Variable([1.0, 2.0])
        stateless = tf.Variable(lambda: tf.random.stateless_normal([4], seed=[1, 2]))
        assigned.assign(tf.ones([4]))
        make_ones = functools.partial(keras.initializers.Ones(), [4], dtype=tf.float32)
        added_to = tf.Variable(make_ones, shape=[4], dtype=tf.float32, name="added")
        added_to.assign_add(tf.ones([4]))
        initial.assign(zeros, lambda: np.full([4], 3.0, np.float32))
        copy = tf.Variable(tf.zeros([4]), name="copied")
        initial.copy(zeros, target=copy)
    assigned.assign_add(tf.ones([4]))
    assert "assign" not in vars(zeros)
    values = (
        (zeros, [3.0] * 4),
        (assigned, [2.0] * 4),
        (added_to, [2.0] * 4),
        (constant, [1.0, 2.0]),
        (copy, [3.0] * 4),
    )
    for variable, expected in values:
        np.testing.assert_array_equal(initial.value(variable), expected)
    np.testing.assert_array_equal(initial.value(stateless), tf.random.stateless_normal([4], seed=[1, 2]))
    np.testing.assert_array_equal(zeros.numpy(), 0)
    with initial.postponed(), pytest.raises(ValueError, match="two variables are named 'zeros:0'"):
        tf.Variable(tf.zeros([4]), name="zeros")


def test_a_large_model_needs_no_memory_before_its_values_are_asked_for() -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before, initial = resident(), InitialValues()
    with initial.postponed():
        variables = [tf.Variable(tf.zeros([4 << 20]), name=str(number)) for number in range(32)]
    assert resident() - before < 128 << 10  # KiB; of 512 MiB
    assert not initial.value(variables[0]).any()
