"""Overlaps the parts of a step on several cores. Most of their time is in libraries that release Python's lock."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

from beam_pipeline.support.threads import start_thread

T = TypeVar("T")

_END = object()
_POLL_SECONDS = 0.05  # between two checks whether the thread has ended


@contextlib.contextmanager
def ahead(items: Iterator[T], *, threads: int) -> Iterator[Iterator[T]]:
    """Context with an iterator of the same items, which another thread computes one or two ahead of the caller.

    The thread has ended when the block ends, even if it raises an error. Only the thread advances `items`.

    Args:
        items: The items. An error that the iterator raises is raised to the caller after the items before it.
        threads: The number of threads that a process may use. If it is one, the block gets `items` itself.
    """
    if threads == 1:
        yield items
        return
    pending: queue.Queue = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def work() -> None:
        failure = None
        try:
            for item in items:
                pending.put((item, None))
                if stopped.is_set():
                    return
        except BaseException as error:
            failure = error
        pending.put((_END, failure))

    def received() -> Iterator[T]:
        while (received_item := pending.get())[0] is not _END:
            yield received_item[0]
        if received_item[1] is not None:
            raise received_item[1]

    thread = start_thread(work)
    try:
        yield received()
    finally:
        stopped.set()
        while thread.is_alive():  # it may wait until an item is taken
            with contextlib.suppress(queue.Empty):
                pending.get(timeout=_POLL_SECONDS)
        thread.join()
