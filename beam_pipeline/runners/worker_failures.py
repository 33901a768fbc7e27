"""Learns of the death of worker processes from the threads in which Beam watches them."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator

import grpc


class _Watch:
    """The runs of this process that have worker processes, by their marks, and the one hook for all of them.

    A hook for each would be lost or stay for ever, since runs in several threads end in any order.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[str, Callable[[BaseException], None]] = {}
        self._previous_hook = threading.excepthook

    @contextlib.contextmanager
    def handle(self, worker_mark: str, handler: Callable[[BaseException], None]) -> Iterator[None]:
        """Calls the handler with the error of a thread that watches a worker process with this mark in its command."""
        with self._lock:
            if not self._handlers:
                self._previous_hook, threading.excepthook = threading.excepthook, self._hook
            self._handlers[worker_mark] = handler
        try:
            yield
        finally:
            with self._lock:
                del self._handlers[worker_mark]
                if not self._handlers:
                    threading.excepthook = self._previous_hook

    def _hook(self, failure: threading.ExceptHookArgs) -> None:
        for frame, _ in traceback.walk_tb(failure.exc_traceback):
            command = getattr(frame.f_locals.get("self"), "_worker_command_line", "")
            for mark, handler in list(self._handlers.items()):
                if isinstance(command, str) and mark in command:
                    return handler(failure.exc_value)
        if not isinstance(failure.exc_value, grpc.RpcError):  # such an error follows the death of a worker
            self._previous_hook(failure)


WATCH = _Watch()
