"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import tensorflow as tf

from tpu_trainer.config import FitConfig, ScheduleConfig


class Schedule:
    """A linear warm-up from 0 to `peak`, then the configured shape."""

    def __init__(self, config: ScheduleConfig, *, peak: float, steps: int) -> None:
        """`steps` are those of the whole run, including the warm-up."""
        self._config = config
        self._peak = peak
        self._steps = steps
        self._warmup = config.warmup(steps)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate (float32) of update `step`, counted from 0."""
        step = tf.cast(step, tf.float32)
        # The ramp starts at step + 1: an update with a learning rate of 0 would change nothing.
        rise = (step + 1) / max(1, self._warmup)
        return self._peak * tf.where(step < self._warmup, rise, self._share(step))

    def _share(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate after the warm-up as a share of the peak."""
        config = self._config
        if config.name == "constant":
            return tf.ones([])
        if config.name == "inverse_sqrt":
            # Vaswani et al., "Attention is all you need" (2017), 5.3, scaled to its peak.
            start = max(1, self._warmup)
            return tf.sqrt(start / tf.maximum(step + 1, start))
        descent = self._steps - self._warmup
        if config.name == "wsd":
            # Hu et al., "MiniCPM" (2024), 4: the peak, then a short final decay.
            descent = max(1, round(config.decay_share * self._steps))
        progress = tf.clip_by_value((step - (self._steps - descent)) / descent, 0.0, 1.0)
        remaining = (1 + tf.cos(math.pi * progress)) / 2 if config.name == "cosine" else 1 - progress
        return config.final_ratio + (1 - config.final_ratio) * remaining


def schedule_of(config: FitConfig) -> Schedule:
    """Returns the schedule of a run."""
    optimizer = config.optimizer.resolved()
    return Schedule(config.schedule, peak=optimizer.learning_rate, steps=config.train.steps)
