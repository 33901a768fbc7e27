"""Writes checkpoints while training continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any

from tpu_trainer.runs.checkpoint import Checkpoints, WriteErrors
from tpu_trainer.runs.parts import Parts


class BackgroundSaver:
    """Writes checkpoints in the background, one at a time. Reports write errors instead of raising them."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        report: Callable[[int, str], None],
        saved: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            checkpoints: The run's.
            report: Called in the saving thread with step and error message after a failed save.
            saved: Called in the saving thread with the step of a complete checkpoint.
        """
        self._checkpoints = checkpoints
        self._report = report
        self._saved = saved
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self.failed = False
        """Whether the last finished save failed."""

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, state: Callable[[], Parts], *, metadata: Mapping[str, Any]) -> None:
        """Waits for the previous save, then starts to write a checkpoint.

        Args:
            step: Updates made.
            state: Copies this process's parts of the state to the host's memory; called in this thread.
            metadata: For `Checkpoints.write`.
        """
        self.wait()
        # Not a daemon, so that the process finishes the save before it exits.
        self._thread = Thread(target=self._write, args=(step, state(), metadata), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits for the current save, then does what `check` does."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises, once, an error that has ended a save and is no write error."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, step: int, parts: Parts, metadata: Mapping[str, Any]) -> None:
        try:
            self._checkpoints.write(step, parts, metadata=metadata)
            self.failed = False
        except WriteErrors as error:
            self.failed = True
            self._report(step, str(error))
        except Exception as error:  # raised in the training thread
            self.failed = True
            self._error = error
        else:
            if self._saved is not None:
                self._saved(step)
