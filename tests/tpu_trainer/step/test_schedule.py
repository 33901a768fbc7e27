"""The learning rate."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.config import ScheduleConfig
from tpu_trainer.step.schedule import Schedule
from tpu_trainer.support.errors import UsageError

STEPS, WARMUP, PEAK = 100, 20, 0.5


def curve(name: str, **config: float) -> np.ndarray:
    config = ScheduleConfig(name=name, **({"warmup_steps": WARMUP, "final_ratio": 0.1} | config))
    schedule = Schedule(config, peak=PEAK, steps=STEPS)
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in range(STEPS + 1)])


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "inverse_sqrt", "wsd"])
def test_the_warm_up_is_linear_to_the_peak(name: str) -> None:
    rates = curve(name)
    np.testing.assert_allclose(rates[:WARMUP], PEAK * np.arange(1, WARMUP + 1) / WARMUP, rtol=1e-6)
    np.testing.assert_allclose(rates[WARMUP], PEAK, rtol=0.03)
    np.testing.assert_array_equal(curve(name, warmup_steps=0, warmup_share=0.2), rates)


def test_the_decay_has_the_configured_shape() -> None:
    progress = np.arange(STEPS - WARMUP + 1) / (STEPS - WARMUP)
    np.testing.assert_allclose(curve("linear")[WARMUP:], PEAK * (1 - 0.9 * progress), rtol=1e-5)
    cosine = 0.1 + 0.9 * (1 + np.cos(np.pi * progress)) / 2
    np.testing.assert_allclose(curve("cosine")[WARMUP:], PEAK * cosine, rtol=1e-5)
    np.testing.assert_allclose(curve("constant")[WARMUP:], PEAK, rtol=1e-6)
    steps = np.arange(WARMUP, STEPS + 1) + 1
    np.testing.assert_allclose(curve("inverse_sqrt")[WARMUP:], PEAK * np.sqrt(WARMUP / steps), rtol=1e-5)
    stable = curve("wsd", decay_share=0.3)
    np.testing.assert_allclose(stable[WARMUP:70], PEAK, rtol=1e-6)
    np.testing.assert_allclose(stable[70:], PEAK * (1 - 0.9 * np.arange(31) / 30), rtol=1e-5)


def test_without_warm_up_the_schedule_starts_at_the_peak() -> None:
    assert curve("linear", warmup_steps=0)[0] == pytest.approx(PEAK)
    np.testing.assert_allclose(
        curve("inverse_sqrt", warmup_steps=0), PEAK / np.sqrt(np.arange(STEPS + 1) + 1), rtol=1e-5
    )
    np.testing.assert_array_equal(
        curve("wsd", warmup_steps=0, decay_share=1.0), curve("linear", warmup_steps=0)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"warmup_steps": 5, "warmup_share": 0.1},
            "schedule.warmup_share is 0.1: --schedule.warmup_steps is also set",
        ),
        ({"warmup_share": 1.0}, "schedule.warmup_share is 1.0"),
        ({"decay_share": 0.0}, "schedule.decay_share is 0.0"),
    ],
)
def test_invalid_values_are_rejected(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScheduleConfig(**options)
