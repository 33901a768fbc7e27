"""The process of a tracker: reads a record and its figures from stdin, and gives them to the tracker's library.

Ends when its program has finished or has ended, killed or not, and the figures are written: at the latest
`seconds_alone` later, even if the library hangs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

from tokenmill_reader.tracking.names import NAMES
from tokenmill_reader.tracking.parameters import without_secrets
from tokenmill_reader.tracking.trackers import Record

_MOST_READ = 1000


class Tracker(Protocol):
    """A record in a tracker. Every module of a tracker has a function `open_record(record)` that returns one.

    Any exception of these methods becomes a warning.
    """

    place: str
    """Where the record is, for people."""

    def log(self, step: int, figures: dict[str, float]) -> None:
        """Logs figures of a step."""

    def finish(self, *, succeeded: bool) -> None:
        """Ends the record."""


class _Messages:
    """The program's messages, read in the background: a library that hangs must not hide that the program has ended."""

    def __init__(self, stream: BinaryIO, *, seconds_alone: int) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue(_MOST_READ)
        self._seconds_alone = seconds_alone
        self._is_alone = False
        self._hangup = select.poll()
        self._hangup.register(stream, 0)
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (line := self._queue.get()) is not None:
            yield json.loads(line)

    def _read(self, stream: BinaryIO) -> None:
        for line in stream:
            if line.endswith(b"\n"):  # else the program was killed while it wrote
                self._put(line)
        self._limit_time()
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        while True:
            with contextlib.suppress(queue.Full):
                self._queue.put(line, timeout=1)
                return
            if self._hangup.poll(0):  # the program has closed its end, though not all is read
                self._limit_time()

    def _limit_time(self) -> None:
        if not self._is_alone:
            self._is_alone = True
            signal.alarm(self._seconds_alone)  # works even if a library keeps Python's lock


class _Replies:
    """Reports to the program. Of repeated problems, only the first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.failures = 0

    def note(self, text: str) -> None:
        self._write(False, text)

    def problem(self, text: str) -> None:
        self._write(True, text)

    def failed_to_log(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            self.problem(f"cannot log figures ({_describe(error)}); the run goes on")

    def _write(self, is_problem: bool, text: str) -> None:
        with contextlib.suppress(OSError):  # the program has ended
            os.write(self._descriptor, json.dumps([is_problem, text]).encode() + b"\n")


def _describe(error: BaseException) -> str:
    text = without_secrets(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:300]}"


_NO_REPORTS = {
    "DO_NOT_TRACK": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}
"""Variables that keep libraries from reporting their use to their makers."""


def _track(name: str, messages: Iterator[dict[str, Any]], replies: _Replies) -> None:
    record = Record(**next(messages))
    try:
        tracker: Tracker = importlib.import_module(f"tokenmill_reader.tracking.{name}").open_record(record)
    except BaseException as error:  # a library may even exit
        replies.problem(f"cannot be used ({_describe(error)}); the run goes on without it")
        return
    replies.note(tracker.place)
    succeeded = False
    for message in messages:
        if "succeeded" in message:
            succeeded = message["succeeded"]
            break
        try:
            tracker.log(message["step"], message["figures"])
        except Exception as error:
            replies.failed_to_log(error)
    try:
        tracker.finish(succeeded=succeeded)
    except Exception as error:
        replies.problem(f"cannot finish ({_describe(error)})")
    if replies.failures > 1:
        replies.problem(f"{replies.failures} sets of figures could not be logged")


def main(name: str, seconds_alone: int) -> None:
    """Runs a tracker, one of `NAMES`, to its end: at most `seconds_alone` after that of the program."""
    if name not in NAMES:
        raise SystemExit(f"{name!r}: is no tracker")
    # Ctrl-C is for the program, which then finishes its trackers. So is a signal to all processes of a machine.
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)  # the program's work comes first
    os.environ.update({name: os.environ.get(name, value) for name, value in _NO_REPORTS.items()})
    messages, replies = os.fdopen(os.dup(0), "rb"), _Replies(os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # libraries print, and may even ask
        os.dup2(nothing, number)
    try:
        _track(name, iter(_Messages(messages, seconds_alone=seconds_alone)), replies)
    except BaseException as error:
        replies.problem(f"ended ({_describe(error)}); the run goes on without it")
    # Not sys.exit: a library's clean-up could hang.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
