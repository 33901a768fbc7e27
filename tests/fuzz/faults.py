"""Faults in a process of their own: a run of `prepare` in a forked child, to which one thing happens.

The changes of the file system are seen by an audit hook, below everything that the pipeline does, so a fault can strike
at any of them, whichever function makes it.
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

_MOST_PRINTED = 1 << 20  # bytes, of what a run prints on one stream

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.rename", "os.remove", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate")


@dataclass
class Ended:
    """How a child ended: its exit status (negative: the signal that ended it; None: it hung), and what it printed."""

    status: int | None
    out: str
    err: str


class Child:
    """`python -m beam_pipeline VERB …` in a forked process.

    Args:
      words: the command line.
      log: the folder for its output.
      watched: changes to files below this folder are counted.
      at: the number of the change at which `strike` is called, in the child; later ones, too, if `from_then_on`.
      prepare: called in the child before the verb.
    """

    _numbers = iter(range(1 << 30))

    def __init__(
        self,
        words: list[str],
        log: Path,
        *,
        watched: str = "",
        at: int = 0,
        strike: Callable[[str], None] | None = None,
        from_then_on: bool = False,
        prepare: Callable[[], None] | None = None,
    ):
        number = next(self._numbers)
        self._logs = [log / f"{number}.out", log / f"{number}.err"]
        # Not files: a limit on the size of files would cut off what the run prints.
        pipes = [os.pipe(), os.pipe()]
        self._pipes = [read_end for read_end, _ in pipes]
        for read_end, write_end in pipes:
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _MOST_PRINTED)
            os.set_blocking(read_end, False)
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                for (_, write_end), descriptor in zip(pipes, (1, 2), strict=True):
                    os.dup2(write_end, descriptor)
                if strike is not None:
                    _watch(watched, at, strike, from_then_on)
                if prepare is not None:
                    prepare()
                status = _run(words)
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)
        for _, write_end in pipes:
            os.close(write_end)

    def stopped(self) -> bool:
        """Waits until the child has stopped itself or ended; returns whether it stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._status: int | None = os.waitstatus_to_exitcode(status)
        return False

    def wait(self) -> Ended:
        """Waits for the child's end; one that hangs is killed."""
        if not hasattr(self, "_status"):
            end = time.monotonic() + TIMEOUT
            while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    found = (self.pid, None)
                    break
                time.sleep(0.01)
            self._status = None if found[1] is None else os.waitstatus_to_exitcode(found[1])
        return Ended(self._status, *map(self._printed, self._pipes, self._logs))

    def _printed(self, pipe: int, log: Path) -> str:
        """Empties a pipe into a file, for whoever looks into a case that was kept."""
        printed = b""
        with contextlib.suppress(BlockingIOError):  # processes of the run may have it open, too
            while piece := os.read(pipe, _MOST_PRINTED):
                printed += piece
        os.close(pipe)
        log.write_bytes(printed)
        return printed.decode(errors="replace")


def _run(words: list[str]) -> int:
    from beam_pipeline.__main__ import run

    try:
        return run(words[0], words[1:])
    except SystemExit as end:  # argparse
        return end.code if isinstance(end.code, int) else 1


def _watch(folder: str, at: int, strike: Callable[[str], None], from_then_on: bool) -> None:
    """Calls `strike` with the path of the change number `at` below `folder`."""
    count = 0
    striking = False

    def hook(event: str, arguments: tuple) -> None:
        nonlocal count, striking
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _CHANGES:
            path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
        else:
            return
        if striking or not isinstance(path, str | bytes) or not _below(folder, path):
            return
        count += 1
        if count == at or (from_then_on and count > at):
            striking = True
            try:
                strike(os.fsdecode(path))
            finally:
                striking = False

    sys.addaudithook(hook)


def _below(folder: str, path: str | bytes) -> bool:
    # A bare name is one that is deleted relative to an open folder: only what is in ours is deleted so.
    path = os.fsdecode(path)
    return path.startswith(folder) or "/" not in path


def kill(_: str) -> None:
    """The process is gone at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: str) -> None:
    """The process stands still until it is sent SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def failing(number: int) -> Callable[[str], None]:
    """The file system refuses the change with this errno."""

    def fail(path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    return fail


def jump(_: str) -> None:
    """The machine's clock jumps by more than a year, backwards."""
    real = time.time
    time.time = lambda: real() - 4e7
    time.time_ns = lambda: int(time.time() * 1e9)


def removing(files: list[Path]) -> Callable[[str], None]:
    """The files are gone."""

    def remove(_: str) -> None:
        for file in files:
            file.unlink(missing_ok=True)

    return remove


def limit_file_size(size: int) -> Callable[[], None]:
    """No file may grow beyond `size` bytes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)
