"""The learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.config import ScheduleConfig
from tpu_trainer.schedule import Schedule

STEPS, WARMUP, PEAK = 100, 20, 0.5


def curve(name: str, final_ratio: float = 0.1, warmup: int = WARMUP) -> np.ndarray:
    config = ScheduleConfig(name=name, warmup_steps=warmup, final_ratio=final_ratio)
    schedule = Schedule(config, peak=PEAK, steps=STEPS)
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in range(STEPS + 1)])


@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_warm_up_rises_evenly_to_the_peak(name: str) -> None:
    rates = curve(name)
    np.testing.assert_allclose(rates[:WARMUP], PEAK * np.arange(1, WARMUP + 1) / WARMUP, rtol=1e-6)
    np.testing.assert_allclose(rates[WARMUP], PEAK, rtol=1e-6)


def test_descents() -> None:
    progress = np.arange(STEPS - WARMUP + 1) / (STEPS - WARMUP)
    np.testing.assert_allclose(curve("linear")[WARMUP:], PEAK * (1 - 0.9 * progress), rtol=1e-5)
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * progress)) / 2
    np.testing.assert_allclose(curve("cosine")[WARMUP:], PEAK * cosine, rtol=1e-5)
    np.testing.assert_allclose(curve("constant")[WARMUP:], PEAK, rtol=1e-6)


def test_without_warm_up_it_starts_at_the_peak() -> None:
    assert curve("linear", warmup=0)[0] == pytest.approx(PEAK)
