"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import FitConfig, ScheduleConfig


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear rise from 0 to `peak`, then the chosen descent."""

    def __init__(self, config: ScheduleConfig, *, peak: float, steps: int) -> None:
        """
        Args:
            config: Its shape.
            peak: The highest learning rate.
            steps: Steps of the whole run, warm-up included.
        """
        self._config = config
        self._peak = peak
        self._steps = steps
        self._warmup = config.warmup(steps)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """float32: the learning rate of the update number `step`, an integer from 0."""
        step = tf.cast(step, tf.float32)
        # The first update is one step up the ramp, not at 0: it would change nothing.
        rise = (step + 1) / max(1, self._warmup)
        return self._peak * tf.where(step < self._warmup, rise, self._share(step))

    def _share(self, step: tf.Tensor) -> tf.Tensor:
        """The learning rate after the warm-up as a share of the peak."""
        config = self._config
        if config.name == "constant":
            return tf.ones([])
        if config.name == "inverse_sqrt":
            # Vaswani et al., "Attention is all you need" (2017), 5.3, scaled to its peak.
            start = max(1, self._warmup)
            return tf.sqrt(start / tf.maximum(step + 1, start))
        descent = self._steps - self._warmup
        if config.name == "wsd":
            # Hu et al., "MiniCPM" (2024), 4: the peak is held until a last, short descent.
            descent = max(1, round(config.decay_share * self._steps))
        progress = tf.clip_by_value((step - (self._steps - descent)) / descent, 0.0, 1.0)
        remaining = (1 + tf.cos(math.pi * progress)) / 2 if config.name == "cosine" else 1 - progress
        return config.final_ratio + (1 - config.final_ratio) * remaining

    def get_config(self) -> dict[str, object]:
        """What Keras shows of the schedule."""
        return {"config": self._config, "peak": self._peak, "steps": self._steps}


def schedule_of(config: FitConfig) -> Schedule:
    """The learning rate of a run's steps."""
    return Schedule(config.schedule, peak=config.optimizer.learning_rate, steps=config.train.steps)
