"""The sums of each source of a mixture, computed by the training step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import batch_of, config_of
from tests.tpu_trainer.tiny import MAX_LENGTH
from tpu_trainer.config import FitConfig, ModelConfig, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.tensorflow.executor import replica_step
from tpu_trainer.step.results import RunningSums, SourceSums
from tpu_trainer.step.task import Task
from tpu_trainer.training.build import build_task

FIRST_ROWS = (0, 5, 40, 41)
ROWS = [3, 41, 0, 5, 90, 39, 41, 4, 7, 41, 2, 60]  # of the sources 0 3 0 1 3 1 3 0 1 3 0 3


def clm_config() -> FitConfig:
    model = ModelConfig(type="gpt2", config={"n_embd": 16, "n_layer": 1, "n_head": 2})
    return replace(config_of(), objective="clm", model=model)


def task_of(vocabulary: Vocabulary, config: FitConfig, replicas: int = 1) -> Task:
    return build_task(
        config,
        vocabulary=vocabulary,
        max_length=MAX_LENGTH,
        target=Target(compile_gradients=replicas > 1),
        first_rows=FIRST_ROWS,
    )


def batch() -> dict[str, tf.Tensor]:
    return batch_of(12) | {"row": tf.constant(ROWS, tf.int32)}


@pytest.mark.parametrize("objective", ["mlm", "clm"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_they_are_the_sums_of_its_rows_alone(
    vocabulary: Vocabulary, objective: str, accumulation: int
) -> None:
    config = config_of() if objective == "mlm" else clm_config()
    train = TrainConfig(steps=20, batch_size=12, accumulation=accumulation)
    task, rows = task_of(vocabulary, replace(config, train=train)), np.array(ROWS)
    whole = build_task(config, vocabulary=vocabulary, max_length=MAX_LENGTH)
    for weight, other in zip(task.weights.values(), whole.weights.values(), strict=True):
        weight.assign(other)
    (*sums, of_sources), gradients = tf.function(task.gradients, jit_compile=True)(
        batch(), tf.constant(7, tf.int64)
    )
    reference = tf.function(whole.gradients, jit_compile=True)
    expected_sums, expected_gradients = reference(batch(), tf.constant(7, tf.int64))
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    ends = [*FIRST_ROWS[1:], 1000]
    for found, first, end in zip(of_sources.numpy(), FIRST_ROWS, ends, strict=True):
        own = np.flatnonzero((rows >= first) & (rows < end))
        if not own.size:
            assert found.tolist() == [0, 0, 0, 0]
            continue
        alone, _ = whole.gradients(
            {name: tf.gather(values, own) for name, values in batch().items()}, tf.constant(7, tf.int64)
        )
        np.testing.assert_allclose(found[:3], alone[:3], rtol=2e-5)
        assert found[3] == own.size * MAX_LENGTH - alone[3]


def test_replicas_add_them_up(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The running sums of two steps on two devices are those of one."""
    # TensorFlow numbers the reductions of all strategies alike, and remembers their shapes as long as the process
    # lives: those without sources, in other tests, have others.
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "_collective_key_base", 1000)
    results = []
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])):
        with strategy.scope():
            task = task_of(vocabulary, config_of(), strategy.num_replicas_in_sync)
        step = tf.function(partial(strategy.run, replica_step))

        def rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            size = 12 // context.num_replicas_in_sync
            return tf.data.Dataset.from_tensor_slices(batch()).batch(size, drop_remainder=True).repeat(2)

        for part in strategy.distribute_datasets_from_function(rows):
            step(args=(task, part))
        results.append(RunningSums.of_values(task.running.numpy().tolist()))
    one, two = results
    assert len(one.sources) == 4 and one.steps == 2
    for found, expected in zip(two.sources, one.sources, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert sum(source.padding for source in one.sources) == 2 * 12 * MAX_LENGTH - one.tokens
    for name in ("loss", "correct", "targets"):
        total = sum(getattr(source, name) for source in one.sources)
        assert total == pytest.approx(getattr(one, name), rel=1e-6)
    assert one.sources[2] == SourceSums(0, 0, 0, 0)


def test_a_single_source_costs_nothing(vocabulary: Vocabulary) -> None:
    plain = build_task(config_of(), vocabulary=vocabulary, max_length=MAX_LENGTH)
    assert plain.running.shape == [7] and len(plain.gradients(batch_of(2), tf.constant(0))[0]) == 4
