"""The training loop: train, log, evaluate, save, and stop if asked."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_trainer.config import TrainConfig
from tpu_trainer.data.batches import RowStream
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.training.evaluation import Evaluations, Validation
from tpu_trainer.training.failure import diverged
from tpu_trainer.training.interruption import AgreedEnd, Interruption
from tpu_trainer.training.profiling import Profiler
from tpu_trainer.training.progress import ProgressLog
from tpu_trainer.training.saving import Saver


class TrainingLoop:
    """Executes a run's steps, and logs, evaluates and saves between them."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        executor: StepExecutor,
        rows: RowStream,
        progress: ProgressLog,
        validation: Validation | None,
        saver: Saver,
        profiler: Profiler,
        interruption: Interruption,
        folder: RunFolder,
    ) -> None:
        """Without `validation`, the weights are not evaluated. `folder` gets the report if training diverges."""
        self._config = config
        self._executor = executor
        self._rows = rows
        self._progress = progress
        self._validation = validation
        self._saver = saver
        self._profiler = profiler
        self._interruption = interruption
        self._agreed_end = AgreedEnd()
        self._agreed_save = AgreedEnd()
        self._folder = folder

    def run(self, first_step: int) -> bool:
        """Trains from step `first_step`, counted from 0, to the last.

        Returns:
            Whether a signal stopped training.

        Raises:
            DivergedError: If the loss or the gradient is not finite.
            UsageError: If a shard cannot be read.
        """
        self._saver.start_clock()
        if self._executor.processes == 1:
            self._interruption.saved_step = first_step
        with (
            self._rows.errors_of_reading(),
            self._progress.shown_from(first_step),
            self._profiler,
        ):
            batches = iter(self._executor.distribute(self._rows.batches(first_step)))
            if self._validation is not None:
                self._validation.resume(first_step, stop=self.interrupted_alone)
            for steps in self._calls(first_step):
                self._profiler.before(steps)
                output = self._executor.train(batches, steps)
                self._interruption.saved_step = None
                self._saver.check()
                self._log(steps, output)
                self._evaluate_if_due(steps)
                stops = self._stops(output)
                self._save_if_due(steps, output, stops=stops)
                self._profiler.after(steps)
                if stops:
                    return True
        return False

    def _calls(self, first_step: int) -> Iterator[range]:
        """Yields the steps of each call of the executor."""
        for start in range(first_step, self._config.steps, self._config.steps_per_execution):
            yield range(start, min(start + self._config.steps_per_execution, self._config.steps))

    def _log(self, steps: range, output: StepOutput) -> None:
        if self._progress.due(steps):
            self._check_finite()
        self._progress.after(steps, output)

    def _evaluate_if_due(self, steps: range) -> None:
        if self._validation is not None and self._validation.due(steps):
            self._check_finite()
            self.evaluate(steps.stop)

    def _save_if_due(self, steps: range, output: StepOutput, *, stops: bool) -> None:
        by_clock = self._due_by_clock(output)
        if by_clock or self._saver.due(steps) or stops:
            self._check_finite()
            self._saver.save(steps.stop)
            self._saver.start_clock()
            self._agreed_save = AgreedEnd()

    def _due_by_clock(self, output: StepOutput) -> bool:
        """Whether the time since the last checkpoint makes one due. All processes return the same."""
        if self._executor.processes == 1:
            return self._saver.due_by_clock()
        if self._agreed_save.ends(output.save_requests):
            return True
        if self._saver.due_by_clock():
            self._executor.request_save()
        return False

    def evaluate(self, step: int) -> Evaluations | None:
        """Evaluates the weights after `step` updates; returns None without validation or after a signal."""
        if self._validation is None:
            return None
        return self._validation.run(step, stop=self.interrupted_alone)

    def interrupted_alone(self) -> bool:
        """Whether a signal asked a single process to end. Several processes evaluate and stop together instead."""
        return self._executor.processes == 1 and self._interruption.requested

    def _stops(self, output: StepOutput) -> bool:
        """Whether training stops after the steps of `output`. All processes return the same."""
        if self._executor.processes == 1:
            return self._interruption.requested
        if self._interruption.requested:
            self._executor.request_end()
        return self._agreed_end.ends(output.end_requests)

    def _check_finite(self) -> None:
        """Raises DivergedError if a step's loss or gradient was not finite: its weights are unusable."""
        non_finite = self._executor.non_finite()
        if non_finite is not None:
            self._saver.wait()
            raise diverged(
                non_finite, rows=self._rows, folder=self._folder, checkpoints=self._saver.checkpoints
            )
