"""Stops a pipeline in a process that may go on, such as that of a notebook: the run's threads and worker processes, and
nothing else.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Collection
from weakref import WeakSet

import grpc

from beam_pipeline.support.processes import command_line, descendants

_SECONDS_TO_END = 2.0


def stop(
    pipeline_thread: threading.Thread, *, worker_mark: str, others: Collection[threading.Thread]
) -> None:
    """Kills the worker processes of a run, and ends the thread that runs its pipeline.

    Args:
        pipeline_thread: Runs the pipeline, with its steps if there are no worker processes.
        worker_mark: The argument that all worker processes of this run have, and no other process.
        others: The threads that the run has not started.
    """
    started = WeakSet(set(threading.enumerate()) - set(others) - {threading.current_thread()})
    _silence(started)
    has_workers = False
    for pid in descendants(os.getpid()):
        if worker_mark in command_line(pid):
            has_workers = True
            with contextlib.suppress(ProcessLookupError):  # it has already ended
                os.kill(pid, signal.SIGKILL)
    if not has_workers:
        # Otherwise it would go on to write the output. With workers, it waits for them forever, and does nothing more.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(pipeline_thread.ident), ctypes.py_object(SystemExit)
        )
        pipeline_thread.join(_SECONDS_TO_END)


def _silence(threads: Collection[threading.Thread]) -> None:
    """Drops the errors of threads, which fail because the run has ended. Our own messages go to another logger."""
    hook = threading.excepthook

    def handle_failure(failure: threading.ExceptHookArgs) -> None:
        if failure.thread not in threads and not isinstance(failure.exc_value, grpc.RpcError):
            hook(failure)

    def is_kept(record: logging.LogRecord) -> bool:
        return threading.current_thread() not in threads

    threading.excepthook = handle_failure
    for handler in (*logging.getLogger().handlers, logging.lastResort):
        if handler is not None:
            handler.addFilter(is_kept)
