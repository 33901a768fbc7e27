"""A profile of some steps of a run."""

from __future__ import annotations

from contextlib import ExitStack

from tpu_trainer.devices.executor import StepExecutor
from tpu_trainer.runs.time_spent import OTHER, TimeSpent


class Profiler:
    """Profiles some steps. Leaving its context ends the profile."""

    def __init__(
        self, executor: StepExecutor, *, steps: tuple[int, int] | None, folder: str, time_spent: TimeSpent
    ) -> None:
        """
        Args:
            executor: Executes the steps.
            steps: The first and the last step, counted from 1; None: no profile.
            folder: The run's TensorBoard folder.
            time_spent: Has no steps in it while the profile is started and written.
        """
        self._executor = executor
        self._first_step, self._last_step = steps or (1, 0)
        self._folder = folder
        self._time_spent = time_spent
        self._running: ExitStack | None = None

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def before(self, steps: range) -> None:
        """Starts the profile if the next step is in it."""
        if self._running is None and self._first_step <= steps.start + 1 <= self._last_step:
            with self._time_spent.on(OTHER):
                self._running = ExitStack()
                self._running.enter_context(self._executor.profile(self._folder))

    def after(self, steps: range) -> None:
        """Ends the profile after its last step."""
        if steps.stop >= self._last_step:
            self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            with self._time_spent.on(OTHER):
                self._running.close()
            self._running = None
