"""The log of training: figures every so many steps, and how far it has come."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.training.callbacks import StepCallback
from tpu_trainer.training.task import Running


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


class ProgressLog(StepCallback):
    """A record of the log after step 1, every `every` steps and the last; and the progress, on stderr."""

    def __init__(
        self,
        *,
        log: MetricsLog,
        first_step: int,
        steps: int,
        every: int,
        batch_size: int,
        schedule: Callable[[tf.Tensor], tf.Tensor],
        unigram_entropy: float | None,
        flops_per_row: float,
        peak_flops: float | None,
        stopwatch: Stopwatch,
    ) -> None:
        """
        Args:
            log: Where the records go.
            first_step: Updates made before this process.
            steps: Updates of the whole run.
            every: Updates between two records.
            batch_size: Rows in an update.
            schedule: The learning rate of an update.
            unigram_entropy: The baseline to show beside the loss, nats.
            flops_per_row: Floating-point operations that training on a row takes.
            peak_flops: The most that all devices together can do in a second; None where it is not known.
            stopwatch: Started here after the first step, which compiles.
        """
        super().__init__(first_step)
        self._log = log
        self._first_step = first_step
        self._steps = steps
        self._every = every
        self._batch_size = batch_size
        self._schedule = schedule
        self._baseline = "" if unigram_entropy is None else f" (unigram {unigram_entropy:.3f})"
        self._flops_per_row = flops_per_row
        self._peak_flops = peak_flops
        self._stopwatch = stopwatch
        self._timed_from: int | None = None  # the step after which the stopwatch was started
        # Read only when a record is written: reading a step's figure may wait for the device.
        self._waits: list[tf.Tensor] = []
        # Where the interval of the record to come began.
        self._interval = (0, 0.0, 0.0)  # timed steps, seconds, tokens that were not timed
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

    def on_step(self, step: int, logs: dict[str, Any]) -> None:
        assert self._bar is not None
        self._bar.update(step - self.previous_step)
        starts = self._timed_from is None
        with self._stopwatch.paused():
            if starts:
                # Tokens of the step that compiles, and of a run before this one, are not of the time that is measured.
                self._interval = (0, 0.0, self._running().tokens)
                self._timed_from = step
            else:
                self._waits.append(logs["input_wait"])
            if self.previous_step == 0 or self.passed(self._every) or step == self._steps:
                self._append(step)
        if starts:
            self._stopwatch.start()

    def _running(self) -> Running:
        return Running(*self.model.running.numpy().tolist())

    def _append(self, step: int) -> None:
        self.check_finite()
        sums = self._running()
        self.model.running.assign(tf.zeros_like(self.model.running))
        targets = max(sums.targets, 1.0)
        loss = sums.loss / targets
        record: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),  # past this a float64 overflows
            "accuracy": sums.correct / targets,
            "learning_rate": float(self._schedule(tf.constant(step - 1))),
            "gradient_norm": sums.gradient_norm / sums.steps,
        }
        if sums.skipped:
            record["skipped_steps"] = int(sums.skipped)
        record |= self._speed(step, sums.tokens)
        self._log.append(record)
        shown = f"loss {loss:.3f}{self._baseline} accuracy {record['accuracy']:.3f}"
        if "tokens_per_second" in record:
            shown += f" {record['tokens_per_second']:,.0f} tokens/s"
            if "mfu" in record:
                shown += f" MFU {record['mfu']:.1%}"
            if not self._terminal:
                shown += f" {tqdm.format_interval(self._seconds_left(step))} left"
        if self._terminal:
            self._bar.set_postfix_str(shown)
        else:
            print(f"step {step}/{self._steps} {shown}", file=sys.stderr, flush=True)

    def _speed(self, step: int, tokens: float) -> dict[str, Any]:
        """Figures of the interval that ends now: of those of its steps that were timed."""
        steps_before, seconds_before, untimed_tokens = self._interval
        timed_steps, seconds = step - self._timed_from, self._stopwatch.seconds()
        self._interval = (timed_steps, seconds, 0.0)
        steps = timed_steps - steps_before
        if not steps:
            return {}
        tokens -= untimed_tokens
        seconds -= seconds_before
        self.tokens += tokens
        waited = sum(float(wait) for wait in self._waits)
        self._waits = []
        rows_per_second = steps * self._batch_size / seconds
        found = {
            "tokens_per_second": round(tokens / seconds),
            "rows_per_second": round(rows_per_second, 2),
            "step_seconds": round(seconds / steps, 6),
            "input_wait_seconds": round(waited / steps, 6),
            "compute_seconds": round((seconds - waited) / steps, 6),
        }
        if self._peak_flops is not None:
            found["mfu"] = round(rows_per_second * self._flops_per_row / self._peak_flops, 4)
        return found

    def _seconds_left(self, step: int) -> float:
        return (self._steps - step) * self._stopwatch.seconds() / (step - self._timed_from)
