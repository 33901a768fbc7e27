"""SIGTERM, SIGHUP and Ctrl-C as exceptions, so that `launch` can delete its resources."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class InterruptedBySignal(BaseException):
    """The named signal was received. A BaseException, so that no error handler catches it."""


class Signals:
    """A context in which the first signal raises InterruptedBySignal and a second one ends the process.

    For the main thread only. Ignored signals, such as SIGHUP under `nohup`, stay ignored.
    """

    def __init__(self, *, exit_message: Callable[[], str]) -> None:
        """
        Args:
            exit_message: Returns the text to write to stderr when a second signal ends the process.
        """
        self._exit_message = exit_message
        self._received: str | None = None
        self._deferred = False

    def __enter__(self) -> Signals:
        self._previous_handlers = {
            number: signal.signal(number, self._receive)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A context without interruptions: a signal takes effect at its end."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            if self._received is not None:
                raise InterruptedBySignal(self._received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            with suppress(OSError):  # the terminal may be closed
                os.write(
                    sys.__stderr__.fileno(), f"launch: exiting at once; {self._exit_message()}\n".encode()
                )
            os._exit(128 + number)
        self._received = signal.Signals(number).name
        if not self._deferred:
            raise InterruptedBySignal(self._received)
