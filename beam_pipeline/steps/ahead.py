"""Overlaps the parts of a step on several cores. Most of their time is in libraries that release Python's lock."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_END = object()
_SECONDS = 0.05  # between two looks whether the thread has ended


@contextlib.contextmanager
def ahead(items: Iterator[T], *, threads: int) -> Iterator[Iterator[T]]:
    """Gives an iterator of the same items, which another thread computes one or two ahead of the caller.

    The thread has ended when the block ends, however it ends. It alone advances `items`.

    Args:
        items: What it raises is raised to the caller in turn.
        threads: How many threads a process may use. If it is one, the block gets `items` itself.
    """
    if threads == 1:
        yield items
        return
    waiting: queue.Queue = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def work() -> None:
        end = None
        try:
            for item in items:
                waiting.put((item, None))
                if stopped.is_set():
                    return
        except BaseException as error:
            end = error
        waiting.put((_END, end))

    def received() -> Iterator[T]:
        while (got := waiting.get())[0] is not _END:
            yield got[0]
        if got[1] is not None:
            raise got[1]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield received()
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait until an item is taken
            with contextlib.suppress(queue.Empty):
                waiting.get(timeout=_SECONDS)
        thread.join()
