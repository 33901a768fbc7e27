"""The seconds of a run by kind, over all of its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

SPENT = "spent_seconds"
"""The name of a record's, checkpoint's and summary's seconds by kind."""
START = "start"
"""Before the first call of the executor: imports, data, building the model, reading the checkpoint."""
COMPILE = "compile"
"""The first call of the executor in a process: compilation and its steps."""
INPUT = "input"
"""Steps' waits for their rows."""
STEP = "step"
"""Steps, without those of the first call and without waits for rows."""
CHECKPOINT = "checkpoint"
"""Training waits while the state is copied and, at the end of a process, until it is written."""
EVALUATION = "evaluation"
OTHER = "other"
"""Logging and profiles."""
LOST = "lost"
"""Work of earlier processes after the checkpoint that training continued from, up to their last record."""

KINDS = (START, COMPILE, INPUT, STEP, CHECKPOINT, EVALUATION, OTHER, LOST)
_REPEATED = (INPUT, STEP, CHECKPOINT, EVALUATION, OTHER)
"""The kinds whose seconds after a checkpoint are lost if training continues from it."""


class TimeSpent:
    """Divides the time of a run into kinds: each moment of a process belongs to one.

    Of earlier processes, only what their records and checkpoints have is known: the seconds between the last record of
    a killed process and its end, and those until the next process started, belong to no kind.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Starts with the kind START. `clock` returns seconds."""
        self._clock = clock
        self._kind, self._since = START, clock()
        self._own = dict.fromkeys(KINDS, 0.0)
        self._earlier = dict.fromkeys(KINDS, 0.0)

    def enter(self, kind: str) -> None:
        """Lets the time from now on be of another kind."""
        now = self._clock()
        self._own[self._kind] += now - self._since
        self._kind, self._since = kind, now

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Lets the time in this context be of another kind."""
        outer_kind = self._kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(outer_kind)

    def move(self, seconds: float, source: str, target: str) -> None:
        """Moves seconds that turn out to be of another kind."""
        self._own[source] -= seconds
        self._own[target] += seconds

    def training_seconds(self) -> float:
        """Returns the seconds of this process's steps and their waits for rows, without the first call."""
        self.enter(self._kind)
        return self._own[STEP] + self._own[INPUT]

    def continue_from(self, saved: Mapping[str, float], last: Mapping[str, float]) -> None:
        """Adds the time of earlier processes.

        Args:
            saved: Their seconds when the checkpoint that training continues from was saved; empty without one.
            last: Their seconds at their last record, which may be earlier or later.
        """
        for kind in KINDS:
            before, after = saved.get(kind, 0.0), last.get(kind, 0.0)
            self._earlier[kind] = before if kind in _REPEATED else max(before, after)
        repeated = sum(last.get(kind, 0.0) - saved.get(kind, 0.0) for kind in _REPEATED)
        self._earlier[LOST] += max(0.0, repeated)

    def earlier_seconds(self) -> dict[str, float]:
        """Returns kind → seconds of earlier processes."""
        return {kind: round(seconds, 3) for kind, seconds in self._earlier.items()}

    def seconds(self) -> dict[str, float]:
        """Returns kind → seconds of all processes, rounded to milliseconds."""
        self.enter(self._kind)
        return {kind: round(self._earlier[kind] + self._own[kind], 3) for kind in KINDS}


def goodput(seconds: Mapping[str, float]) -> float | None:
    """Returns the share of STEP in the seconds of all kinds; None without any."""
    total = sum(seconds.values())
    return seconds.get(STEP, 0.0) / total if total else None
