"""Ctrl-C and SIGTERM while the compiler runs, which returns to Python after minutes only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenmill_reader.console.streams import write_to_stderr
from tpu_trainer.support.watched_signals import watched_signals

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_at_once(clean_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A context in which SIGINT and SIGTERM end the process at once, after `clean_up`. For the main thread.

    Ignored signals stay ignored.
    """

    def end(number: int) -> None:
        clean_up()
        if number == signal.SIGINT:
            write_to_stderr("compile-check: interrupted; the same command continues from the cache\n")
        os._exit(128 + number)

    with watched_signals((n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN), end):
        yield
