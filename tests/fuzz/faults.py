"""Runs `prepare` in a forked child with one fault.

An audit hook of Python observes changes to the file system below all code of the pipeline, so a fault can happen at any
of them, whichever function makes the change.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 180.0

_PIPE_BYTES = 1 << 20  # the most that a run may print on one stream

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate")


@dataclass
class Ended:
    """The result of a child."""

    status: int | None
    """Its exit status. Negative: the signal that ended it. None: it hung."""
    out: str
    err: str


class Child:
    """`python -m beam_pipeline VERB …` in a forked process.

    Args:
        argv: The verb and its arguments.
        log: The folder for its output.
        watched_folder: The folder whose changes are counted.
        fault_change: The number of the change at which the child calls `fault`.
        fault: Causes the fault. Gets the path that is about to change.
        from_then_on: Whether to call `fault` at all later changes, too.
        prepare: Called in the child before the verb.
    """

    _numbers = iter(range(1 << 30))

    def __init__(
        self,
        argv: list[str],
        log: Path,
        *,
        watched_folder: str = "",
        fault_change: int = 0,
        fault: Callable[[str], None] | None = None,
        from_then_on: bool = False,
        prepare: Callable[[], None] | None = None,
    ):
        number = next(self._numbers)
        self._logs = [log / f"{number}.out", log / f"{number}.err"]
        # Pipes rather than files, since a limit on the size of files would truncate the output.
        pipes = [os.pipe(), os.pipe()]
        self._pipes = [read_end for read_end, _ in pipes]
        for read_end, write_end in pipes:
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            os.set_blocking(read_end, False)
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                for (_, write_end), descriptor in zip(pipes, (1, 2), strict=True):
                    os.dup2(write_end, descriptor)
                if fault is not None:
                    _watch(watched_folder, fault_change, fault, from_then_on)
                if prepare is not None:
                    prepare()
                status = _run(argv)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        for _, write_end in pipes:
            os.close(write_end)

    def wait_for_stop(self) -> bool:
        """Waits until the child has stopped itself or ended, and returns whether it stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._status: int | None = os.waitstatus_to_exitcode(status)
        return False

    def wait(self) -> Ended:
        """Waits until the child ends. Kills it if it hangs."""
        if not hasattr(self, "_status"):
            end = time.monotonic() + TIMEOUT
            while not (pid_and_status := os.waitpid(self.pid, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    pid_and_status = (self.pid, None)
                    break
                time.sleep(0.01)
            self._status = None if pid_and_status[1] is None else os.waitstatus_to_exitcode(pid_and_status[1])
        return Ended(self._status, *map(self._read_output, self._pipes, self._logs))

    def _read_output(self, pipe: int, log: Path) -> str:
        """Reads a pipe, and copies its content to a file for `--keep`."""
        output = b""
        # There is no end of file if other processes of the run still have it open.
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(pipe, _PIPE_BYTES):
                output += piece
        os.close(pipe)
        log.write_bytes(output)
        return output.decode(errors="replace")


def _run(argv: list[str]) -> int:
    from beam_pipeline.__main__ import run

    try:
        return run(argv[0], argv[1:])
    except SystemExit as end:  # argparse
        return end.code if isinstance(end.code, int) else 1


def _watch(folder: str, fault_change: int, fault: Callable[[str], None], from_then_on: bool) -> None:
    """Calls `fault` with the changing path at change number `fault_change` below `folder`."""
    count = 0
    is_in_fault = False

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count, is_in_fault
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _CHANGES:
            path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
        else:
            return
        if is_in_fault or not isinstance(path, str | bytes) or not _below(folder, path):
            return
        count += 1
        if count == fault_change or (from_then_on and count > fault_change):
            is_in_fault = True
            try:
                fault(os.fsdecode(path))
            finally:
                is_in_fault = False

    sys.addaudithook(hook)


def _below(folder: str, path: str | bytes) -> bool:
    # A bare name is a file that is deleted relative to an open folder. This happens only below the watched folder.
    path = os.fsdecode(path)
    return path.startswith(folder) or "/" not in path


def kill(_: str) -> None:
    """Kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: str) -> None:
    """Pauses the process until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def failing(number: int) -> Callable[[str], None]:
    """Returns a fault that makes the change fail with this errno."""

    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    return fail


def jump(_: str) -> None:
    """Sets the process's clock back by more than a year."""
    real_time = time.time
    time.time = lambda: real_time() - 4e7
    time.time_ns = lambda: int(time.time() * 1e9)


def removing(files: list[Path]) -> Callable[[str], None]:
    """Returns a fault that deletes the files."""

    def remove(_: str) -> None:
        for file in files:
            file.unlink(missing_ok=True)

    return remove


def limit_file_size(size: int) -> Callable[[], None]:
    """Returns a function that limits the size of files to `size` bytes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)
