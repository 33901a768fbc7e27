"""Logs training figures at intervals and shows the progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, SupportsFloat

from tqdm import tqdm

from tokenmill_reader.console.elapsed import ticking
from tokenmill_reader.console.terminal import shows_bars
from tpu_trainer.config import TrainConfig
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.runs.metrics import MetricsLog
from tpu_trainer.runs.time_spent import COMPILE, INPUT, OTHER, STEP, TimeSpent
from tpu_trainer.training.expected_time import Speed
from tpu_trainer.training.sources import SourceFigures

_log = logging.getLogger(__name__)


def passes(steps: range, every: int) -> bool:
    """Whether the number of updates reaches a multiple of `every` during `steps`."""
    return steps.stop // every > steps.start // every


@dataclass(frozen=True, kw_only=True)
class ModelFigures:
    """Figures of the model."""

    parameters: int
    """Number of trainable parameters."""
    flops_per_row: float
    """Floating-point operations to train on a row."""
    peak_flops: float | None
    """Peak operations per second of all devices together; None if unknown."""
    speed: Speed | None
    """The speed to expect; None if unknown."""


class ProgressLog:
    """Logs a record after step 1, every `log_every` steps and the last step; shows the progress on stderr."""

    def __init__(
        self,
        *,
        log: MetricsLog,
        executor: StepExecutor,
        config: TrainConfig,
        learning_rate: Callable[[int], float],
        model: ModelFigures,
        unigram_entropy: float | None,
        time_spent: TimeSpent,
        sources: SourceFigures,
    ) -> None:
        """
        Args:
            log: Gets the records.
            executor: Executes the steps.
            config: The run's length, batch size and log interval.
            learning_rate: Step, counted from 0 → learning rate.
            model: For the model FLOPs utilization.
            unigram_entropy: The baseline to show beside the loss, in nats; None: no baseline.
            time_spent: Has steps in it after the first call of the executor, which compiles.
            sources: The figures of the data's sources.
        """
        self._log = log
        self._executor = executor
        self._config = config
        self._learning_rate = learning_rate
        self._model = model
        self._baseline = "" if unigram_entropy is None else f" (unigram {unigram_entropy:.3f})"
        self._time_spent = time_spent
        self._sources = sources
        self._timed_from: int | None = None  # updates made by the first call's end
        # Converted to floats only for a record: converting a step's output may wait for the device.
        self._waits: list[SupportsFloat] = []
        # At the start of the next record's interval: timed steps, seconds, tokens that were not timed.
        self._interval = (0, 0.0, 0.0)
        self._terminal = shows_bars()
        self._bar: tqdm | None = None
        self._compiling = ExitStack()  # the display until the first call of the executor has returned
        self.tokens = 0.0
        """Real tokens trained on in the measured time."""

    @contextmanager
    def shown_from(self, first_step: int) -> Iterator[None]:
        """Shows a progress bar in this context, starting at `first_step` updates, if stderr is a terminal."""
        with (
            tqdm(
                total=self._config.steps,
                initial=first_step,
                unit=" steps",
                desc="fit: compiling",
                disable=not self._terminal,
            ) as self._bar,
            self._compiling,
        ):
            self._compiling.enter_context(ticking(self._bar))
            self._time_spent.enter(COMPILE)
            yield
        self._time_spent.enter(OTHER)

    def _compiled(self) -> None:
        """Ends the display of the first call, whose time belongs neither to the rate nor to the time left."""
        self._compiling.close()
        self._bar.set_description_str("fit", refresh=False)
        self._bar.unpause()

    def due(self, steps: range) -> bool:
        """Whether to write a record after `steps`."""
        is_last_step = steps.stop == self._config.steps
        return steps.start == 0 or is_last_step or passes(steps, self._config.log_every)

    def after(self, steps: range, output: StepOutput) -> None:
        """Counts executed steps; writes a record if it is due."""
        starts = self._timed_from is None
        if starts:
            self._compiled()
        self._bar.update(len(steps))
        with self._time_spent.on(OTHER):
            if starts:
                # The measured time excludes the step that compiles and any earlier process, so exclude their tokens.
                self._interval = (0, 0.0, self._executor.sums().tokens)
                self._timed_from = steps.stop
            else:
                self._waits.append(output.input_wait)
            if self.due(steps):
                self._append(steps.stop)
        if starts:
            self._time_spent.enter(STEP)

    def _append(self, step: int) -> None:
        sums = self._executor.sums()
        self._executor.clear_sums()
        targets = max(sums.targets, 1.0)
        loss = sums.loss / targets
        record: dict[str, Any] = {
            "step": step,
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),  # more overflows a float64
            "accuracy": sums.correct / targets,
            "learning_rate": self._learning_rate(step - 1),
            "gradient_norm": sums.gradient_norm / sums.steps,
        }
        if sums.skipped:
            record["skipped_steps"] = int(sums.skipped)
        record |= self._speed(step, sums.tokens)
        sources = self._sources.after(step, sums.sources)
        record["tokens"] = self._sources.tokens(step)
        record["flops"] = self._model.flops_per_row * self._rows(0, step)
        if sources:
            record["sources"] = sources
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
            _log.info(f"step {step}/{self._config.steps} {shown}")

    def _speed(self, step: int, tokens: float) -> dict[str, Any]:
        """Returns the figures of the timed steps in the interval that ends now."""
        steps_before, seconds_before, untimed_tokens = self._interval
        timed_steps, seconds = step - self._timed_from, self._time_spent.training_seconds()
        self._interval = (timed_steps, seconds, 0.0)
        steps = timed_steps - steps_before
        if not steps:
            return {}
        tokens -= untimed_tokens
        seconds -= seconds_before
        self.tokens += tokens
        # Waits are by the machine's clock, which may be set meanwhile.
        waited = min(max(sum(float(wait) for wait in self._waits), 0.0), seconds)
        self._waits = []
        self._time_spent.move(waited, STEP, INPUT)
        rows_per_second = self._rows(self._timed_from + steps_before, step) / seconds
        figures = {
            "tokens_per_second": round(tokens / seconds),
            "rows_per_second": round(rows_per_second, 2),
            "step_seconds": round(seconds / steps, 6),
            "input_wait_seconds": round(waited / steps, 6),
            "compute_seconds": round((seconds - waited) / steps, 6),
        }
        if self._model.peak_flops is not None:
            figures["mfu"] = round(rows_per_second * self._model.flops_per_row / self._model.peak_flops, 4)
        return figures

    def _seconds_left(self, step: int) -> float:
        seconds_per_row = self._time_spent.training_seconds() / self._rows(self._timed_from, step)
        return self._rows(step, self._config.steps) * seconds_per_row

    def _rows(self, first: int, end: int) -> int:
        """Returns the rows of steps `first` to `end`."""
        return self._config.rows_before(end) - self._config.rows_before(first)
