"""Keras callbacks of a run: its evaluations, its checkpoints, its profile. Its log is in progress.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.training.evaluation import Evaluation


class NonFiniteStep(Exception):
    """Training has met a loss or a gradient that is not finite; says nothing yet of the data, as DivergedError does."""


class StepCallback(keras.callbacks.Callback):
    """Calls `on_step` with the number of updates made, counted from the run's beginning."""

    def __init__(self, first_step: int) -> None:
        """
        Args:
            first_step: Updates made before this process.
        """
        super().__init__()
        self.previous_step = first_step
        """The updates made at the call before: several fewer where one call of Keras' makes several."""
        self._start = first_step
        self._step = first_step
        # Keras would otherwise fetch the logs from the device after every step.
        self._supports_tf_logs = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._step = self._start + batch + 1
        self.on_step(self._step, logs or {})
        self.previous_step = self._step

    def on_step(self, step: int, logs: dict[str, Any]) -> None:
        raise NotImplementedError

    def passed(self, every: int) -> bool:
        """Whether a multiple of `every` lies after the previous step, up to and with the present one."""
        return self._step // every > self.previous_step // every

    def check_finite(self) -> None:
        """Raises NonFiniteStep where the model's weights are no longer good."""
        if self.model.non_finite() is not None:
            raise NonFiniteStep


class PeriodicEvaluation(StepCallback):
    """Evaluates every `every` steps. Not at the last step: `fit` does that itself, when the weights are saved."""

    def __init__(
        self,
        *,
        evaluate: Callable[[int], Evaluation | None],
        first_step: int,
        steps: int,
        every: int,
        due: bool,
    ) -> None:
        """
        Args:
            evaluate: Evaluates the weights after that many updates, and logs the figures.
            first_step: Updates made before this process.
            steps: Updates of the whole run.
            every: Updates between two evaluations.
            due: Whether the weights of `first_step` are still to be evaluated.
        """
        super().__init__(first_step)
        self._evaluate = evaluate
        self._steps = steps
        self._every = every
        self._due = due

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._due:
            self._evaluate(self._step)

    def on_step(self, step: int, logs: dict[str, Any]) -> None:
        if self.passed(self._every) and step != self._steps:
            self.check_finite()
            self._evaluate(step)


class PeriodicCheckpoint(StepCallback):
    """Saves every `every` steps and every `minutes` minutes, and where training is asked to end."""

    def __init__(
        self,
        *,
        save: Callable[[int], None],
        busy: Callable[[], bool],
        interrupted: Callable[[dict[str, Any]], bool],
        first_step: int,
        every: int,
        minutes: float | None,
    ) -> None:
        """
        Args:
            save: Saves the state after that many updates.
            busy: Whether an earlier save is not finished; one that is due by the clock waits for it.
            interrupted: Whether training is to end, asked once a step with its logs.
            first_step: Updates made before this process.
            every: Updates between two checkpoints.
            minutes: Time between two checkpoints; None: any.
        """
        super().__init__(first_step)
        self._save = save
        self._busy = busy
        self._interrupted = interrupted
        self._every = every
        self._seconds = math.inf if minutes is None else 60 * minutes
        self._saved_at = time.monotonic()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._saved_at = time.monotonic()

    def on_step(self, step: int, logs: dict[str, Any]) -> None:
        by_clock = time.monotonic() - self._saved_at >= self._seconds and not self._busy()
        ends = self._interrupted(logs)
        if self.passed(self._every) or by_clock or ends:
            self.check_finite()
            self._save(step)
            self._saved_at = time.monotonic()
        if ends:
            self.model.stop_training = True


class Profile(StepCallback):
    """Profiles steps `first` to `last`, both included, into a folder that TensorBoard's profile plugin reads."""

    def __init__(
        self,
        *,
        folder: str,
        first: int,
        last: int,
        first_step: int,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """
        Args:
            folder: The run's TensorBoard folder.
            first: The first step.
            last: The last step.
            first_step: Updates made before this process.
            paused: The time in its context does not count as training.
        """
        super().__init__(first_step)
        self._folder = folder
        self._first = first
        self._last = last
        self._paused = paused
        self._running = False

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._running and self._first <= self._step + 1 <= self._last:
            with self._paused():
                tf.profiler.experimental.start(self._folder)
            self._running = True

    def on_step(self, step: int, logs: dict[str, Any]) -> None:
        if step >= self._last:
            self._stop()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._running:
            with self._paused():
                tf.profiler.experimental.stop()
            self._running = False
