"""The running mean of the weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import batch_of, config_of, task_of
from tpu_trainer.config import OptimizerConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.tensorflow.executor import replica_step
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize("devices", [1, 2])
def test_the_average_follows_its_formula(vocabulary: Vocabulary, devices: int) -> None:
    strategy: Any = tf.distribute.get_strategy()
    if devices == 2:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    config = replace(config_of(), optimizer=OptimizerConfig(learning_rate=0.01, ema=0.3))
    task = task_of(vocabulary, config, strategy)
    task.average.start()

    def values(network: Any) -> list[np.ndarray]:
        return [variable.numpy() for variable in network.trainable_variables]

    expected = values(task.network)
    step = tf.function(lambda batch: strategy.run(replica_step, args=(task, batch)))
    for update in range(1, 6):
        step(batch_of(12, seed=update))
        decay = min(0.3, (1 + update) / (10 + update))
        expected = [decay * e + (1 - decay) * w for e, w in zip(expected, values(task.network), strict=True)]
    trained = values(task.network)
    for actual, mean in zip(values(task.average.network), expected, strict=True):
        np.testing.assert_allclose(actual, mean, rtol=1e-4, atol=1e-6)
    with task.average.in_place():
        for actual, mean in zip(values(task.network), expected, strict=True):
            np.testing.assert_allclose(actual, mean, rtol=1e-4, atol=1e-6)
    for actual, weight in zip(values(task.network), trained, strict=True):
        np.testing.assert_array_equal(actual, weight)
    assert task.state()["average"] is task.average.network


@pytest.mark.parametrize("ema", [0.0, 1.0])
def test_invalid_decays_are_rejected(ema: float) -> None:
    with pytest.raises(UsageError, match=rf"optimizer.ema is {ema}: must be between 0 and 1"):
        OptimizerConfig(ema=ema)
