"""A pipe to the process of a tracker. Writing to it never waits: what does not fit is left out, and reported."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

MOST_WAITING = 10_000
"""Messages that wait for room in the pipe. One has some hundred bytes."""


class Channel:
    """Sends messages to the process of a tracker, in order."""

    def __init__(
        self,
        name: str,
        *,
        opening: dict[str, Any],
        seconds_alone: int,
        report: Callable[[bool, str], None],
    ) -> None:
        """Starts the process, which opens its record while this one goes on.

        Args:
            name: The tracker's.
            opening: The fields of its `Record`.
            seconds_alone: Longest time that the process goes on after the program.
            report: Called with what the tracker reports: whether it is a problem, and the text.
        """
        self._name, self._report = name, report
        self._waiting: deque[bytes] = deque()
        self._left_out = 0
        self._has_warned = False
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._replies = b""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tokenmill_reader.tracking", name, str(seconds_alone)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            self._warn(f"cannot be started ({error})")
            return
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)
        self.send(opening)

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message, now or with a later one. Leaves figures out if too many messages wait."""
        with self._lock:
            if self._process is None or os.getpid() != self._owner:
                return
            if len(self._waiting) >= MOST_WAITING and "figures" in message:
                if not self._left_out:
                    self._warn("does not keep up; some figures are left out there")
                self._left_out += 1
            else:
                self._waiting.append(json.dumps(message).encode() + b"\n")
            self._exchange()

    def wait(self, deadline: float) -> None:
        """Waits until the process has ended after its last message, or for the `deadline`, by time.monotonic."""
        with self._lock:
            if self._process is None or os.getpid() != self._owner:
                return
            ended = False
            while not ended and (seconds := deadline - time.monotonic()) > 0:
                self._exchange()
                if self._process is None:
                    return
                ended = self._wait_for_room_or_reply(seconds)
            if not ended:
                self._warn("is not ready; it goes on alone for a while")
            if self._left_out:
                self._warn(f"{self._left_out} sets of figures were left out")
            self._end(has_ended=ended)

    def _wait_for_room_or_reply(self, seconds: float) -> bool:
        """Waits for the process; returns whether it has closed its end, having written all it had."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if self._waiting:
                selector.register(self._process.stdin, selectors.EVENT_WRITE)
            ready = selector.select(seconds)
        readable = any(key.fileobj is self._process.stdout for key, _ in ready)
        return readable and not self._read()

    def _exchange(self) -> None:
        """Reads what the process reports, and writes what the pipe has room for."""
        try:
            self._read()
            while self._waiting:
                line = self._waiting[0]
                written = self._process.stdin.write(line)
                if not written:  # no room
                    return
                if written < len(line):
                    self._waiting[0] = line[written:]
                else:
                    self._waiting.popleft()
        except OSError:  # the process has ended
            self._read()
            self._end(has_ended=True)

    def _read(self) -> bool:
        """Reports what the process has written; returns whether it may write more."""
        while (chunk := self._process.stdout.read(1 << 16)) is not None:
            if not chunk:
                return False
            *lines, self._replies = (self._replies + chunk).split(b"\n")
            for line in lines:
                is_problem, text = json.loads(line)
                self._has_warned |= is_problem
                self._report(is_problem, f"{self._name}: {text}")
        return True

    def _end(self, *, has_ended: bool) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        if has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            if self._process.returncode and not self._has_warned:
                self._warn("ended early; the run goes on without it")
        self._process = None
        self._waiting.clear()

    def _warn(self, text: str) -> None:
        self._report(True, f"{self._name}: {text}")
