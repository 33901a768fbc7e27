"""The learning rate as a function of the step."""

from __future__ import annotations

import math

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import ScheduleConfig


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear rise from 0 to `peak`, then the chosen descent to `final_ratio` · peak at step `steps`."""

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

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """float32: the learning rate of the update number `step`, an integer from 0."""
        config = self._config
        step = tf.cast(step, tf.float32)
        # The first update is one step up the ramp, not at 0: it would change nothing.
        rise = (step + 1) / max(1, config.warmup_steps)
        progress = tf.clip_by_value(
            (step - config.warmup_steps) / (self._steps - config.warmup_steps), 0.0, 1.0
        )
        if config.name == "constant":
            share = tf.ones([])
        elif config.name == "linear":
            share = 1 - (1 - config.final_ratio) * progress
        else:
            cosine = (1 + tf.cos(math.pi * progress)) / 2
            share = config.final_ratio + (1 - config.final_ratio) * cosine
        return self._peak * tf.where(step < config.warmup_steps, rise, share)

    def get_config(self) -> dict[str, object]:
        """What Keras shows of the schedule."""
        return {"config": self._config, "peak": self._peak, "steps": self._steps}
