"""Ctrl-C while native code runs, such as a compiler, which returns to Python after minutes only."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tokenmill_reader.console.streams import write_to_stderr

_PATIENCE = 1.0  # seconds that native code has to return


@contextmanager
def prompt_interrupts(program: str) -> Iterator[None]:
    """A context in which Ctrl-C ends the process soon, with status 130. For the main thread; does nothing in others.

    Ctrl-C raises KeyboardInterrupt as usual. But Python does so only when native code returns to it. If that takes more
    than a second, or Ctrl-C is pressed again, another thread ends the process at once. It reads the signal's number,
    which the interpreter writes to a pipe without waiting.

    Does nothing while other code handles the signal, or ignores it.

    Args:
        program: The beginning of the message, such as the verb.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    raised = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        raised.set()
        raise KeyboardInterrupt

    def watch() -> None:
        interrupts = 0
        while number := os.read(reader, 1):
            if number[0] != signal.SIGINT or signal.getsignal(signal.SIGINT) is not interrupt:
                continue
            interrupts += 1
            if interrupts > 1 or not raised.wait(_PATIENCE):
                write_to_stderr(f"{program}: interrupted\n")
                os._exit(128 + signal.SIGINT)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGINT, interrupt)
    old_descriptor = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, name="interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(old_descriptor)
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(writer)  # ends the thread
        thread.join()
        os.close(reader)
