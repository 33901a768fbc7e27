"""Worker processes that exit when their launcher does. As a program, runs Beam's worker for a local run.

python -m beam_pipeline.support.worker_process LAUNCHER_PID MARK

The mark distinguishes the workers of one run.
"""

from __future__ import annotations

import ctypes
import io
import logging
import os
import signal
import sys
import threading
import time
from typing import TextIO

from beam_pipeline.support.errors import user_message
from beam_pipeline.support.lean_beam import import_beam
from beam_pipeline.support.processes import collect_garbage_rarely
from tokenmill_reader.console import streams

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5
# Beam warns in each worker that it was started without a main session, and with an argument of this program.
_LOGGERS = ("apache_beam.runners.worker.sdk_worker_main", "apache_beam.options.pipeline_options")


def main() -> None:
    """Runs Beam's worker."""
    streams.harden(shows=False)
    start(int(sys.argv[1]))
    collect_garbage_rarely()
    sys.stderr = _WithoutUserErrors(sys.stderr)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    import_beam()
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


def start(launcher: int) -> None:
    """Prepares a worker process to end with its launcher, also after Ctrl-C, which reaches both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_launcher(launcher)


class _WithoutUserErrors(io.TextIOBase):
    """A stream without the tracebacks that Beam prints of errors that a user can fix. The launcher shows these."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        if user_message(Exception(text)) is None:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def exit_with_launcher(launcher: int) -> None:
    """Makes this process exit as soon as its parent, `launcher`, does, even if the parent is killed."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(launcher,), daemon=True).start()
    if os.getppid() != launcher:  # it has already ended
        os._exit(1)


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
