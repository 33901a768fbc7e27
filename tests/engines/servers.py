"""Server processes of the engines. They end with the process that started them, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from beam_pipeline.support.processes import kill_descendants
from beam_pipeline.support.worker_process import exit_with_launcher

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".engines"

Value = TypeVar("Value")

_SECONDS_TO_WAIT = 500  # other processes may use the cores


class Server:
    """A server process, whose output is in a file.

    Args:
        name: For messages, and for the name of the file.
        command: The command.
        folder: Folder for its output.
        env: Variables to add to the environment.
    """

    def __init__(
        self, name: str, command: Sequence[object], *, folder: Path, env: Mapping[str, str] | None = None
    ):
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for pytest, which then ends the servers
                preexec_fn=partial(exit_with_launcher, os.getpid()),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, description: str, find: Callable[[], Value | None]) -> Value:
        """Waits until `find` returns a value, and returns it."""
        return wait_for(f"{self.name}: {description}", find, lambda: self._check_alive())

    def wait_for_port(self, port: int) -> None:
        """Waits until the server accepts connections."""
        self.wait_for(f"port {port}", lambda: is_listening(port) or None)

    def kill(self) -> None:
        """Ends the server and its children with SIGKILL."""
        kill_descendants(self.pid)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _check_alive(self) -> None:
        status = self._process.poll()
        if status is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
            raise AssertionError(f"{self.name} ended with status {status}:\n{tail}")


def wait_for(
    description: str,
    find: Callable[[], Value | None],
    check: Callable[[], None] = lambda: None,
    *,
    seconds: float = _SECONDS_TO_WAIT,
) -> Value:
    """Calls `find` until it returns something else than None, and returns that.

    Args:
        description: Name of the awaited event, for the error message.
        find: Looks for it.
        check: Raises an exception if waiting is pointless.
        seconds: How long to wait.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = find()
        if value is not None:
            return value
        check()
        time.sleep(0.05)
    raise AssertionError(f"{description}: waited {seconds} s in vain")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_listening(port: int) -> bool:
    """Returns whether a server listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
