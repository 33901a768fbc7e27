"""Restores and saves the state of a run."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from tokenmill_reader import Mixture
from tpu_trainer.config import FitConfig
from tpu_trainer.data.mixture import check_same_data
from tpu_trainer.devices.executor import StepExecutor
from tpu_trainer.exports.hub import HubPusher
from tpu_trainer.runs.background_saver import BackgroundSaver
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.parts import Parts
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import CHECKPOINT, SPENT, TimeSpent
from tpu_trainer.support.errors import NotSavedError, UsageError
from tpu_trainer.training.progress import passes

_log = logging.getLogger(__name__)


class Saver:
    """Saves a run's state in the background, and pushes saved models to the Hub if the run has a repository there."""

    def __init__(
        self,
        config: FitConfig,
        *,
        folder: RunFolder,
        train: Mixture,
        executor: StepExecutor,
        time_spent: TimeSpent,
    ) -> None:
        """Saves nothing if this process is alone and `folder` is not writable.

        The time in which the state is copied, and waits for its file, is that of checkpoints.

        Raises:
            UsageError: If all checkpoints in `folder` are damaged or, with --strict, one is.
        """
        self._config = config
        self._folder = folder
        self._train = train
        self._executor = executor
        self._time_spent = time_spent
        self.checkpoints = Checkpoints(
            folder.checkpoints, keep=config.train.keep_checkpoints, channel=executor.channel()
        )
        self._pusher = None
        if config.hub_model_id is not None and folder.writable:
            self._pusher = HubPusher(config.hub_model_id, private=config.hub_private, folder=folder)
        self._background = BackgroundSaver(
            self.checkpoints, report=self._report_failure, saved=self._push_in_background
        )
        self.checkpoints.leave_out_damaged(strict=config.strict)
        best = self.checkpoints.best()
        self.best_loss = math.inf if best is None else self.checkpoints.metadata(best)["validation_loss"]
        """The lowest validation loss of a checkpoint."""
        self._saved_at = time.monotonic()

    def restore(self) -> int:
        """Loads the newest checkpoint into the executor.

        Returns:
            The checkpoint's number of updates; 0 without a checkpoint.

        Raises:
            UsageError: If the checkpoint is from other data or another model, or has more steps than the run.
        """
        steps = self.checkpoints.steps()
        if not steps:
            return 0
        step = steps[-1]
        if step > self._config.train.steps:
            raise UsageError(
                f"--train.steps is {self._config.train.steps}, but the run's newest checkpoint already has {step} steps"
            )
        trained = self.checkpoints.metadata(step)["data"]
        check_same_data(self._config, self._train, step=step, trained=trained)
        shapes = self._executor.state_shapes()
        self._executor.load_state(self.checkpoints.read(step, shapes, resized=["running"]))
        _log.info(f"fit: continues after step {step}")
        return step

    def saved_seconds(self, step: int) -> dict[str, float]:
        """Returns the seconds by kind when the checkpoint of `step` was saved; empty without one."""
        return self.checkpoints.metadata(step).get(SPENT, {}) if step else {}

    def data_before(self, step: int) -> str:
        """Returns the fingerprint of the data of the steps before `step`."""
        return self._train.fingerprint_before(self._config.train.rows_before(step))

    def start_clock(self) -> None:
        """Restarts the time until `checkpoint_minutes` makes a save due."""
        self._saved_at = time.monotonic()

    def due(self, steps: range) -> bool:
        """Whether to save the state after `steps` because of their number."""
        return passes(steps, self._config.train.checkpoint_every)

    def due_by_clock(self) -> bool:
        """Whether to save the state because of `checkpoint_minutes` and the previous save is finished.

        Only in the process that writes: others do not know whether it is finished.
        """
        if not self._folder.writable:
            return False
        minutes = self._config.train.checkpoint_minutes
        seconds = math.inf if minutes is None else 60 * minutes
        return time.monotonic() - self._saved_at >= seconds and not self._background.busy

    def save(self, step: int, **metadata: Any) -> None:
        """Copies the state after `step` updates and starts writing it. All processes write their parts."""
        if not self._folder.writable and self._executor.processes == 1:
            return
        metadata |= {"data": self.data_before(step), "max_length": self._train.max_length}

        def state() -> Parts:
            parts = self._executor.state()
            metadata[SPENT] = self._time_spent.seconds()  # with those of the copy
            return parts

        with self._time_spent.on(CHECKPOINT):
            self._background.save(step, state, metadata=metadata)

    def save_if_best(self, step: int, validation_loss: float) -> None:
        """Saves the state after `step` updates if its validation loss is the lowest so far."""
        if validation_loss < self.best_loss:
            self.best_loss = validation_loss
            self.save(step, validation_loss=validation_loss)

    def wait(self) -> None:
        """Waits for the current save, then does what `check` does."""
        with self._time_spent.on(CHECKPOINT):
            self._background.wait()

    def check(self) -> None:
        """Raises an error that has ended a save and is no write error: no later save may succeed."""
        self._background.check()

    def ensure_saved(self, step: int) -> None:
        """Waits for the save of the last step, and retries it once: these weights are the run's result.

        Raises:
            NotSavedError: If the second attempt failed, too.
        """
        if self._failed():
            self.save(step)
        if self._failed():
            raise NotSavedError(
                f"the last checkpoint, of step {step}, could not be written to {self._folder.checkpoints}; free some "
                f"space, then {self.how_to_continue()}"
            )

    def _failed(self) -> bool:
        """Waits for the current save; returns whether it failed. All processes return the same."""
        self.wait()
        failed = self._background.failed
        return not self._executor.same_in_all_processes(int(failed)) or failed

    def ensure_nothing_failed(self) -> None:
        """Waits for the last save.

        Raises:
            NotSavedError: If it failed.
        """
        self.wait()
        if self._background.failed:
            raise NotSavedError(
                f"interrupted, and the last state could not be saved; {self.how_to_continue()}"
            )

    def how_to_continue(self) -> str:
        """Describes how to continue after an interruption, for messages."""
        if not self._folder.writable:
            return "the same command on all hosts continues from the first host's last checkpoint"
        steps = self.checkpoints.steps()
        return f"the same command continues after step {steps[-1] if steps else 0}"

    def end_pushes(self, *, interrupted: bool) -> None:
        """Waits for a push in progress; after a signal, abandons it: the run's next process pushes again."""
        if self._pusher is not None and interrupted:
            self._pusher.abandon()
        elif self._pusher is not None:
            self._pusher.wait()

    def push_last(self, step: int) -> None:
        """Pushes the run's last checkpoint to the Hub, if the run has a repository there."""
        if self._pusher is not None:
            self._pusher.finish(step)

    def _push_in_background(self, step: int) -> None:
        if self._pusher is not None and step < self._config.train.steps:
            self._pusher.push_in_background(step)

    def _report_failure(self, step: int, message: str) -> None:
        _log.warning(
            f"fit: the checkpoint of step {step} could not be written ({message}); training continues"
        )
