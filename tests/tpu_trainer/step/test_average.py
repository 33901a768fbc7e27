"""The running mean of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.config import OptimizerConfig
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.step.average import WeightAverage
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize("devices", [1, 2])
def test_the_average_follows_its_formula(devices: int) -> None:
    strategy: Any = tf.distribute.get_strategy()
    if devices == 2:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(6, 2)).astype(np.float32) for _ in range(6)]
    with strategy.scope():
        trained = {"weight": tf.Variable(weights[0])}
        mean = {"weight": tf.Variable(tf.zeros([6, 2]))}
        average = WeightAverage(trained=trained, mean=mean, decay=0.3)
    average.start()
    step = tf.function(lambda updates: strategy.run(average.update, args=(updates,)))
    expected = weights[0].astype(np.float64)
    for update, weight in enumerate(weights[1:], 1):
        trained["weight"].assign(weight)
        step(tf.constant(update))
        decay = min(0.3, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * weight
    np.testing.assert_allclose(mean["weight"].numpy(), expected, rtol=1e-5)
    for copy in strategy.experimental_local_results(mean["weight"]):
        np.testing.assert_array_equal(copy.numpy(), mean["weight"].numpy())
    with average.in_place():
        np.testing.assert_allclose(trained["weight"].numpy(), expected, rtol=1e-5)
    np.testing.assert_array_equal(trained["weight"].numpy(), weights[-1])


def test_it_starts_from_the_postponed_values_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_trainer.network.initial_values._LEAST_ELEMENTS", 2)
    initial = InitialValues(postpone=True)
    trained, mean = (
        {"weight": initial.variable(f"{part}/weight", [3], lambda value=value: np.full(3, value, np.float32))}
        for part, value in (("network", 2), ("average", 0))
    )
    WeightAverage(trained=trained, mean=mean, decay=0.9).start(initial)
    np.testing.assert_array_equal(initial.value(mean["weight"]), 2)
    with pytest.raises(ValueError, match=r"names differ: \['other', 'weight'\]"):
        WeightAverage(trained=trained, mean={"other": mean["weight"]}, decay=0.9)


@pytest.mark.parametrize("ema", [0.0, 1.0])
def test_invalid_decays_are_rejected(ema: float) -> None:
    with pytest.raises(UsageError, match=rf"optimizer.ema is {ema}: must be between 0 and 1"):
        OptimizerConfig(ema=ema)
