"""Stopping a pipeline in a process that goes on."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_pipeline.runners.interruption import PipelineThread
from beam_pipeline.steps.ahead import ahead
from beam_pipeline.support.copies import outputs_in_order
from beam_pipeline.support.errors import WorkerDied


def test_the_threads_of_a_run_end_and_other_threads_that_began_meanwhile_go_on() -> None:
    working, others_may_end = threading.Event(), threading.Event()
    threads: set[threading.Thread] = set()
    pool = ThreadPoolExecutor(1)

    def slow_outputs(element: int) -> Iterator[int]:
        while True:
            threads.add(threading.current_thread())
            time.sleep(0.001)
            if len(threads) == 4:
                working.set()
            yield element

    def process(element: int) -> Iterator[int]:
        threads.add(threading.current_thread())
        with ahead(slow_outputs(element), threads=2) as outputs:
            yield from (output for output in outputs if output < 0)

    def execute() -> None:
        pool.submit(int).result()  # its thread then waits for work
        for _ in outputs_in_order(itertools.count(), lambda: process, copies=2):
            raise AssertionError("no element has outputs that pass")

    pipeline = PipelineThread(execute)

    other_ended_well = threading.Event()

    def other_work() -> None:
        working.wait(30)
        pipeline.fail(WorkerDied("interrupted"))
        while not others_may_end.wait(0.01):
            pass
        other_ended_well.set()

    @contextlib.contextmanager
    def start_another() -> Iterator[None]:
        threading.Thread(target=other_work).start()
        yield

    with pytest.raises(WorkerDied):
        pipeline.run(start_another())
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    others_may_end.set()
    assert other_ended_well.wait(10)
    assert pool.submit(int).result(10) == 0
    pool.shutdown()


def test_a_thread_that_is_only_about_to_begin_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lists it, but it has no identifier yet."""
    list_threads, beginning = threading.enumerate, threading.Thread()
    pipeline = PipelineThread(lambda: time.sleep(0.5))

    def listed() -> list[threading.Thread]:
        threads = list_threads()
        beginning.name = next((thread.name for thread in threads if thread.name.startswith("pipeline")), "")
        return [*threads, beginning] if beginning.name else threads

    monkeypatch.setattr(threading, "enumerate", listed)
    pipeline.fail(WorkerDied("interrupted"))
    with pytest.raises(WorkerDied):
        pipeline.run(contextlib.nullcontext())
