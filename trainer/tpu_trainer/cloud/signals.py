"""SIGTERM, SIGHUP and Ctrl-C as exceptions, so that what was asked for can be given back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class InterruptedBySignal(BaseException):
    """A signal, by name. No error: nothing that handles errors may take it for one."""


class Signals:
    """While its context is open, the first signal raises InterruptedBySignal; a second one ends the process.

    For the main thread only. A signal that is ignored already, as SIGHUP is below `nohup`, stays ignored.

    Args:
      last_words: called before the process ends at once; what it returns is written to stderr.
    """

    def __init__(self, *, last_words: Callable[[], str]) -> None:
        self._last_words = last_words
        self._received: str | None = None
        self._held = False

    def __enter__(self) -> Signals:
        self._old = {
            number: signal.signal(number, self._receive)
            for number in _SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Puts a signal off to the end of the context: what is inside is not interrupted half-way."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._received is not None:
                raise InterruptedBySignal(self._received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is not None:
            os.write(sys.__stderr__.fileno(), f"launch: ends at once; {self._last_words()}\n".encode())
            os._exit(128 + number)
        self._received = signal.Signals(number).name
        if not self._held:
            raise InterruptedBySignal(self._received)
