"""Keras callbacks of a run: its log, its evaluations, its checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tqdm import tqdm

from tpu_trainer.evaluation import Evaluator
from tpu_trainer.objectives import Sums
from tpu_trainer.run_folder import RunFolder


class Stopwatch:
    """Seconds of training: what runs between steps, and compilation, is taken out."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._sum = 0.0

    def start(self) -> None:
        """From here on the time counts."""
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """The time counted so far."""
        return self._sum + (0.0 if self._start is None else time.perf_counter() - self._start)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The time in here does not count."""
        running = self._start is not None
        self._sum, self._start = self.seconds(), None
        try:
            yield
        finally:
            if running:
                self.start()


class _StepCallback(keras.callbacks.Callback):
    """Calls `on_step` with the number of updates made, counted from the run's beginning."""

    def __init__(self, first_step: int) -> None:
        super().__init__()
        self._first_step = first_step
        # Keras would otherwise fetch the logs from the device after every step.
        self._supports_tf_logs = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.on_step(self._first_step + batch + 1)

    def on_step(self, step: int) -> None:
        raise NotImplementedError


class ProgressLog(_StepCallback):
    """A line of metrics.jsonl after step 1, every `every` steps and the last; and the progress, on stderr."""

    def __init__(
        self,
        *,
        folder: RunFolder,
        first_step: int,
        steps: int,
        every: int,
        schedule: Callable[[tf.Tensor], tf.Tensor],
        unigram_entropy: float | None,
        stopwatch: Stopwatch,
    ) -> None:
        """
        Args:
            folder: Where metrics.jsonl is.
            first_step: Updates made before this process.
            steps: Updates of the whole run.
            every: Updates between two lines.
            schedule: The learning rate of an update.
            unigram_entropy: The baseline to show beside the loss, nats.
            stopwatch: Started here after the first step, which compiles.
        """
        super().__init__(first_step)
        self._folder = folder
        self._steps = steps
        self._every = every
        self._schedule = schedule
        self._baseline = "" if unigram_entropy is None else f" (unigram {unigram_entropy:.3f})"
        self._stopwatch = stopwatch
        self._seconds_before = 0.0
        self._untimed_tokens = 0.0
        self._terminal = sys.stderr.isatty()
        self._bar: tqdm | None = None
        self.tokens = 0.0
        """Real tokens trained on while the stopwatch ran."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._bar = tqdm(
            total=self._steps, initial=self._first_step, unit="step", desc="fit", disable=not self._terminal
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_step(self, step: int) -> None:
        assert self._bar is not None
        self._bar.update()
        first = step == self._first_step + 1
        with self._stopwatch.paused():
            if first:
                # Tokens of the step that compiles, and of a run before this one, are not of the time that is measured.
                self._untimed_tokens = self._sums().tokens
            if step == 1 or step % self._every == 0 or step == self._steps:
                self._log(step, timed=not first)
        if first:
            self._stopwatch.start()

    def _sums(self) -> Sums:
        return Sums(*self.model.running.numpy().tolist())

    def _log(self, step: int, *, timed: bool) -> None:
        sums = self._sums()
        self.model.running.assign(np.zeros(len(sums), np.float32))
        targets = max(sums.targets, 1.0)
        record: dict[str, Any] = {
            "step": step,
            "loss": sums.loss / targets,
            "accuracy": sums.correct / targets,
            "learning_rate": float(self._schedule(tf.constant(step - 1))),
        }
        shown = f"loss {record['loss']:.3f}{self._baseline} accuracy {record['accuracy']:.3f}"
        if timed:
            tokens = sums.tokens - self._untimed_tokens
            seconds = self._stopwatch.seconds()
            speed = tokens / (seconds - self._seconds_before)
            self._seconds_before = seconds
            self.tokens += tokens
            record["tokens_per_second"] = round(speed)
            left = (self._steps - step) * seconds / (step - self._first_step - 1)
            shown += f" {speed:,.0f} tokens/s"
            if not self._terminal:
                shown += f" {tqdm.format_interval(left)} left"
        self._untimed_tokens = 0.0
        self._folder.append_metrics(record)
        if self._terminal:
            self._bar.set_postfix_str(shown)
        else:
            print(f"step {step}/{self._steps} {shown}", file=sys.stderr, flush=True)


class PeriodicEvaluation(_StepCallback):
    """Evaluates every `every` steps; the figures go to metrics.jsonl. Not at the last step: `fit` does that itself."""

    def __init__(
        self,
        *,
        evaluator: Evaluator,
        folder: RunFolder,
        first_step: int,
        steps: int,
        every: int,
        stopwatch: Stopwatch,
    ) -> None:
        """
        Args:
            evaluator: The split to evaluate.
            folder: Where metrics.jsonl is.
            first_step: Updates made before this process.
            steps: Updates of the whole run.
            every: Updates between two evaluations.
            stopwatch: Paused meanwhile.
        """
        super().__init__(first_step)
        self._evaluator = evaluator
        self._folder = folder
        self._steps = steps
        self._every = every
        self._stopwatch = stopwatch

    def on_step(self, step: int) -> None:
        if step % self._every or step == self._steps:
            return
        with self._stopwatch.paused():
            figures = self._evaluator.run()
            self._folder.append_metrics({"step": step, "eval": figures.to_json()})
            tqdm.write(
                f"step {step}: validation loss {figures.loss:.3f} accuracy {figures.accuracy:.3f}",
                file=sys.stderr,
            )


class PeriodicCheckpoint(_StepCallback):
    """Calls `save` every `every` steps."""

    def __init__(
        self, *, save: Callable[[int], None], first_step: int, every: int, stopwatch: Stopwatch
    ) -> None:
        """
        Args:
            save: Saves the state after that many updates.
            first_step: Updates made before this process.
            every: Updates between two checkpoints.
            stopwatch: Paused meanwhile.
        """
        super().__init__(first_step)
        self._save = save
        self._every = every
        self._stopwatch = stopwatch

    def on_step(self, step: int) -> None:
        if step % self._every == 0:
            with self._stopwatch.paused():
                self._save(step)
