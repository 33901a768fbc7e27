"""Updates with a loss spike are skipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.test_task import batch_of, config_of, task_of
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.tensorflow.executor import replica_step
from tpu_trainer.step.results import RunningSums
from tpu_trainer.step.spikes import SpikeGuard


def spikes(losses: np.ndarray, deviations: float = 6.0) -> list[int]:
    """Returns the indices of the spikes."""
    is_spike = tf.function(SpikeGuard(deviations).is_spike)
    return [index for index, loss in enumerate(losses) if bool(is_spike(tf.constant(loss, tf.float32)))]


def usual_losses(count: int) -> np.ndarray:
    """Losses that fall from 9 to 4 with some noise."""
    noise = np.random.default_rng(0).normal(scale=0.05, size=count)
    return 4 + 5 * np.exp(-np.arange(count) / 100) + noise


def test_exactly_the_spikes_are_found() -> None:
    losses = usual_losses(1000)
    assert spikes(losses) == []
    losses[[50, 400, 401, 900]] += 3  # the first comes before there is anything to compare with
    assert spikes(losses) == [400, 401, 900]


def test_a_permanently_higher_loss_becomes_normal() -> None:
    losses = usual_losses(1000)
    losses[500:] += 2
    spike_steps = spikes(losses)
    assert spike_steps[0] == 500
    assert 1 < len(spike_steps) < 64


def test_the_mean_and_the_variance_are_those_of_the_losses() -> None:
    guard = SpikeGuard(6.0)
    losses = usual_losses(60).astype(np.float32)
    for loss in losses:
        guard.is_spike(tf.constant(loss))
    np.testing.assert_allclose(guard.state.numpy(), [60, losses.mean(), losses.var()], rtol=1e-4)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_spikes_update_is_skipped_on_every_device(vocabulary: Vocabulary, devices: int) -> None:
    strategy = (
        tf.distribute.get_strategy()
        if devices == 1
        else tf.distribute.MirroredStrategy([f"CPU:{device}" for device in range(devices)])
    )
    config = config_of()
    task = task_of(vocabulary, replace(config, train=replace(config.train, skip_spikes=6.0)), strategy)
    assert "spikes" in task.state()
    step = tf.function(lambda batch: strategy.run(replica_step, args=(task, batch)))

    def variables() -> list[np.ndarray]:
        return [v.numpy() for v in (*task.weights.values(), *task.optimizer.slots().values())]

    start = variables()
    step(batch_of(12))
    before = variables()
    assert any((a != b).any() for a, b in zip(start, before, strict=True))
    task._spikes.state.assign([1000.0, 0.1, 1e-4])  # a history of losses of 0.1, in which any loss is a spike
    step(batch_of(12, seed=6))
    for value_before, value in zip(before, variables(), strict=True):
        np.testing.assert_array_equal(value_before, value)
    assert int(task.optimizer.step.numpy()) == 2
    sums = RunningSums(*task.running.numpy())
    assert (sums.steps, sums.skipped) == (2, 1)
    task._spikes.state.assign([1000.0, 4.0, 100.0])
    step(batch_of(12, seed=6))
    assert any((a != b).any() for a, b in zip(before, variables(), strict=True))
    assert RunningSums(*task.running.numpy()).skipped == 1
