"""Signals that take effect while the main thread does not return to Python, as in a step or a compilation."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def watched_signals(numbers: Iterable[int], receive: Callable[[int], object]) -> Iterator[None]:
    """A context in which another thread calls `receive` with the number of each of these signals, at once.

    Python's handlers wait until the main thread returns to the interpreter. But it writes the signals' numbers to a
    pipe without waiting, and the thread reads them. For the main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    old_descriptor = signal.set_wakeup_fd(writer)

    def watch() -> None:
        while received := os.read(reader, 1):
            if received[0] in handlers:
                receive(received[0])

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)
