"""Calls of Python functions by TensorFlow's threads, and their end before the interpreter's."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

_SETTLED_SECONDS = 0.1


class PythonCalls:
    """Wraps functions that threads of input pipelines call.

    An interpreter that ends stops each thread that is in Python or enters it. It then frees the pipeline, which waits
    forever for its stopped thread. So before it ends, calls in progress are waited for, and further ones fail. A
    pipeline stores what failed until its buffer is full, and calls no more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._last = 0.0  # the time of the last call
        self._closed = False
        atexit.register(self.close)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the same function for the threads of a pipeline."""

        def call(*arguments: Any) -> Any:
            with self._lock:
                self._last = time.monotonic()
                if self._closed:
                    raise RuntimeError("the interpreter is ending")
                self._running += 1
            try:
                return function(*arguments)
            finally:
                with self._lock:
                    self._running -= 1
                    self._last = time.monotonic()

        return call

    def close(self) -> None:
        """Waits for the calls in progress, and until no pipeline makes any more."""
        self._closed = True
        while self._running or time.monotonic() - self._last < _SETTLED_SECONDS:
            time.sleep(_SETTLED_SECONDS / 10)
