"""Compiles steps in another process, because TensorFlow and the compiler keep memory of all that they have compiled."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from tqdm import tqdm

from tokenmill_reader.console.logs import log_to_stderr
from tpu_trainer.config import CompileCheckConfig
from tpu_trainer.support import quiet
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.mesh_search import RefusedStep

_MOST_MEMORY = 2.5e9
"""Bytes of a process that has compiled a step, above which the next step gets a new process."""


class CompileProcess:
    """A process that compiles one step after another; it is replaced if it has grown or died."""

    def __init__(self, topology: Topology) -> None:
        """
        Args:
            topology: The devices.
        """
        self._topology = topology
        self._process: Any = None
        self._pipe: Connection | None = None
        self.largest = 0
        """The most bytes that a process had."""
        self.hits = self.misses = 0
        """Programs from the cache, and compiled ones."""

    def report(self, config: CompileCheckConfig) -> dict[str, Any]:
        """Returns the figures of a configuration's step.

        Raises:
            RefusedStep: If it cannot be compiled, or the process died of it.
            UsageError: If the compiler does not support the topology.
            RuntimeError: If the process raised another error, with its traceback.
        """
        if self._process is None:
            self._start()
        try:
            self._pipe.send(config)
            kind, result, memory, hits, misses = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(10)
            status = self._process.exitcode
            self.close()
            why = "no memory left on this machine?" if status == -signal.SIGKILL else "see its messages above"
            raise RefusedStep(f"its compilation ended with status {status} ({why})") from None
        self.largest = max(self.largest, memory)
        self.hits += hits
        self.misses += misses
        if memory > _MOST_MEMORY:
            self.close()
        if kind == "refused":
            raise UsageError(result) if result.startswith("--topology") else RefusedStep(result)
        if kind == "error":
            raise RuntimeError(f"compiling a step failed:\n{result}")
        return result

    def close(self) -> None:
        """Ends the process, also while it compiles."""
        if self._process is not None:
            self._pipe.close()
            self._process.terminate()  # it deletes its temporary files
            self._process.join(10)
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._topology), daemon=True)
        self._process.start()
        other.close()  # or its end would not be noticed here


def _serve(pipe: Connection, topology: Topology) -> None:
    # The terminal sends it to both; the parent ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Not one for several processes, which a killed process would not give back.
    tqdm.set_lock(threading.RLock())
    quiet.set_log_levels()
    log_to_stderr("tpu_trainer")
    while True:
        try:
            config = pipe.recv()
        except EOFError:  # the parent has ended
            return
        hits = misses = 0
        try:
            kind, (result, hits, misses) = "report", _report(config, topology)
        except UsageError as error:
            kind, result = "refused", str(error)
        except Exception:
            import traceback

            kind, result = "error", traceback.format_exc()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        try:
            pipe.send((kind, result, memory, hits, misses))
        except OSError:
            return


def _end_with_parent() -> None:
    """Ends this process when its parent has ended, which may have been killed: a step may take 14 GB for minutes."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)


def _report(config: CompileCheckConfig, topology: Topology) -> tuple[dict[str, Any], int, int]:
    from tpu_trainer.tpu_check.cache import open_cache
    from tpu_trainer.tpu_check.check import StepCheck

    cache = open_cache(config.cache)
    check = StepCheck(config, topology=topology, cache=cache)
    return check.report(check.configured_rows()), cache.hits, cache.misses
