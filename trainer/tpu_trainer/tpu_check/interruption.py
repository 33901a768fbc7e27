"""Ctrl-C and SIGTERM while the compiler runs, which returns to Python after minutes only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenmill_reader.console.streams import write_to_stderr

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_at_once(clean_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """A context in which SIGINT and SIGTERM end the process at once, after `clean_up`. For the main thread.

    Python's handlers wait until the main thread returns from the compiler. Another thread reads the signals' numbers,
    which the interpreter writes to a pipe without waiting. Ignored signals stay ignored.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {
        number: signal.signal(number, lambda *_: None)
        for number in _SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    old_descriptor = signal.set_wakeup_fd(writer)

    def watch() -> None:
        while received := os.read(reader, 1):
            if received[0] in handlers:
                clean_up()
                if received[0] == signal.SIGINT:
                    write_to_stderr("compile-check: interrupted; the same command continues from the cache\n")
                os._exit(128 + received[0])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writer)
        thread.join()
        os.close(reader)
