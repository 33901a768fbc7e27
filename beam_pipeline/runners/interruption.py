"""Stops a pipeline in a process that may go on, such as that of a notebook: the run's threads and worker processes, and
nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakSet

from beam_pipeline.support.errors import WorkerDied
from beam_pipeline.support.processes import command_line, descendants

_SECONDS_TO_END = 2.0
_NUMBERS = itertools.count()  # of the runs of this process


class PipelineThread:
    """Runs a pipeline in a thread, so that an interrupt is handled at once, whatever the steps do."""

    def __init__(self, execute: Callable[[], Any], *, worker_mark: str | None = None):
        """
        Args:
            execute: Runs the pipeline.
            worker_mark: The argument that all worker processes of this run have, and no other process. None if the run
                has none.
        """
        self._execute, self._worker_mark = execute, worker_mark
        self._outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run(self, watch: contextlib.AbstractContextManager[None]) -> Any:
        """Returns what the pipeline returns, or raises its exception. Stops it if it is interrupted.

        Args:
            watch: Entered while the pipeline runs; it may call `fail`.
        """
        others = threading.enumerate()
        thread = threading.Thread(target=self._run, daemon=True, name=f"pipeline {next(_NUMBERS)}")
        try:
            with watch:  # left before `_stop`, which silences what it would report
                thread.start()
                result, error = self._outcomes.get()
                if isinstance(error, WorkerDied):
                    raise error
        except (KeyboardInterrupt, WorkerDied):
            _stop(thread, worker_mark=self._worker_mark, others=others)
            raise
        if error is not None:
            raise error
        return result

    def fail(self, error: WorkerDied) -> None:
        """Ends the run with this error. For other threads."""
        self._outcomes.put((None, error))

    def _run(self) -> None:
        try:
            self._outcomes.put((self._execute(), None))
        except BaseException as error:
            self._outcomes.put((None, error))


def _stop(
    pipeline_thread: threading.Thread, *, worker_mark: str | None, others: Collection[threading.Thread]
) -> None:
    """Kills the worker processes of a run, and ends the thread that runs its pipeline.

    Args:
        pipeline_thread: Runs the pipeline, with its steps if there are no worker processes.
        worker_mark: See `PipelineThread`.
        others: The threads that the run has not started.
    """
    started = WeakSet(set(threading.enumerate()) - set(others) - {threading.current_thread()})
    _silence(started)
    has_workers = False
    for pid in descendants(os.getpid()) if worker_mark else ():
        if worker_mark in command_line(pid):
            has_workers = True
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGKILL)
    if not has_workers:
        # Otherwise it would go on to write the output. With workers, it waits for them forever, and does nothing more.
        # Threads of pools and of other code go on: they may serve others, or wait for work that they would lose.
        for thread in started:
            if thread.name != pipeline_thread.name or thread.ident is None:  # None: it is only about to begin
                continue
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
        pipeline_thread.join(_SECONDS_TO_END)


def _silence(threads: Collection[threading.Thread]) -> None:
    """Drops the errors of threads, which fail because the run has ended. Our own messages go to another logger."""
    hook = threading.excepthook

    def handle_failure(failure: threading.ExceptHookArgs) -> None:
        if failure.thread not in threads and not _is_rpc_error(failure.exc_value):
            hook(failure)

    def is_kept(record: logging.LogRecord) -> bool:
        return threading.current_thread() not in threads

    threading.excepthook = handle_failure
    for handler in (*logging.getLogger().handlers, logging.lastResort):
        if handler is not None:
            handler.addFilter(is_kept)


def _is_rpc_error(error: BaseException | None) -> bool:
    grpc = sys.modules.get("grpc")  # a run without Beam does not import it
    return grpc is not None and isinstance(error, grpc.RpcError)
