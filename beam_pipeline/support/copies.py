"""Runs copies of a step in threads, each with some of the elements."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from beam_pipeline.support.threads import start_thread


def outputs_in_order(
    elements: Iterable[Any], make_process: Callable[[], Callable[[Any], Iterable[Any]]], copies: int
) -> Iterator[Any]:
    """Yields the outputs of all elements, in the order of the elements.

    An error is raised after the outputs of the elements before it, and no copy takes an element after it. The threads
    have ended when the iterator is closed.

    >>> list(outputs_in_order([2, 0, 3], lambda: range, copies=2))
    [0, 1, 0, 1, 2]

    Args:
        elements: The elements, which one thread takes at a time.
        make_process: Makes a copy of the step in a thread that has an element for it: a function that returns the
            outputs of an element.
        copies: The number of threads.
    """
    iterator, lock, stopped = iter(elements), threading.Lock(), threading.Event()
    results: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()
    taken = 0

    def work() -> None:
        nonlocal taken
        process, number = None, 0
        try:
            while not stopped.is_set():
                with lock:
                    number = taken
                    taken += 1
                    element = next(iterator)
                process = process or make_process()
                results.put((number, list(process(element))))
        except StopIteration:
            pass
        except BaseException as error:
            stopped.set()
            results.put((number, error))
        results.put((None, None))

    threads = [start_thread(work) for _ in range(copies)]
    finished: dict[int, Any] = {}
    number = 0
    try:
        while copies:
            result_number, result = results.get()
            if result_number is None:
                copies -= 1
                continue
            finished[result_number] = result
            while number in finished:
                outputs = finished.pop(number)
                number += 1
                if isinstance(outputs, BaseException):
                    raise outputs
                yield from outputs
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
