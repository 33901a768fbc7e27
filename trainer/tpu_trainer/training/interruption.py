"""SIGTERM and Ctrl-C: the first makes the run save and end, the second ends the process at once.

Spot TPUs, Cloud Build and batch systems send SIGTERM some seconds before they take the machine away.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from types import TracebackType
from typing import SupportsFloat

from tokenmill_reader.console.streams import write_to_stderr
from tpu_trainer.support.errors import ExitStatus
from tpu_trainer.support.watched_signals import watched_signals

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class AgreedEnd:
    """Ends all processes that train together after the same step, even if only one gets a signal.

    Each step sums the requests to end over all processes. All processes read a step's sum `AHEAD` steps later, when the
    device has computed it. Reading the newest sum would make the device wait for the host.
    """

    AHEAD = 4

    def __init__(self) -> None:
        self._unread: deque[SupportsFloat] = deque()

    def ends(self, requests: SupportsFloat) -> bool:
        """Whether training ends after the current step. Call it for every step with its sum of requests."""
        self._unread.append(requests)
        return len(self._unread) > self.AHEAD and float(self._unread.popleft()) > 0


class Interruption:
    """Context that records whether a signal asked the run to end. For the main thread only."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.saved_step: int | None = None
        """The newest checkpoint's step while nothing was trained since: a signal then ends the process at once. The
        first step compiles for minutes, longer than some systems wait."""

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._requested.is_set()

    def __enter__(self) -> Interruption:
        self._watching = watched_signals(_SIGNALS, self._receive)
        self._watching.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.__exit__(kind, error, trace)

    def _receive(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.requested:
            write_to_stderr(f"fit: {name} again: ending at once\n")
            os._exit(128 + number)
        if self.saved_step is not None:
            write_to_stderr(
                f"fit: {name}: ending at once; the same command continues after step {self.saved_step}\n"
            )
            # After Ctrl-C nobody runs the command again; those who send SIGTERM do.
            os._exit(128 + number if number == signal.SIGINT else ExitStatus.INTERRUPTED)
        self._requested.set()
        write_to_stderr(f"fit: {name}: saving after this step, then ending\n")
