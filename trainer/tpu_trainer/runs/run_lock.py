"""The lock of a run's folder: one `fit` at a time writes there, however many hosts train for it.

The holder renews the lock. On a local disk it also holds flock(2), which ends with its process. Not every network file
system shares flock between machines: if the lock names another machine, the next process waits to see whether it is
still renewed. `cloud.run_lease` has the lock of Cloud Storage.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tpu_trainer.support.errors import ExitStatus, UsageError

NAME = "run.lock"
RENEWAL_SECONDS = 15.0
_SILENT_SECONDS = 60.0
"""A holder that does not renew the lock for this long is dead."""
_CHECKS = 4
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)


class LostLockError(UsageError):
    """Another `fit` has taken the lock over."""


class RunLock(Protocol):
    """A lock on a run's folder."""

    def acquire(self) -> None:
        """Takes the lock; raises UsageError if another `fit` holds it."""

    def renew(self) -> None:
        """Shows that the holder lives; raises LostLockError if another `fit` has the lock."""

    def release(self) -> None:
        """Gives the lock back."""


@contextmanager
def held(lock: RunLock) -> Iterator[None]:
    """A context that holds the lock. If another `fit` takes it over, the process ends at once: it must not write."""
    lock.acquire()
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(lock, ended), name="lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            lock.release()
        except OSError as error:
            _log.warning(f"fit: {NAME} cannot be removed ({error})")


def _renew(lock: RunLock, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL_SECONDS):
        try:
            lock.renew()
        except LostLockError as error:
            os.write(sys.stderr.fileno(), f"fit: error: {error}; this process ends\n".encode())
            os._exit(ExitStatus.USAGE)
        except OSError as error:
            _log.warning(f"fit: {NAME} cannot be renewed ({error}); trying again")


class FolderLock:
    """The lock of a folder on a local or network file system."""

    def __init__(self, folder: str, *, sleep: Callable[[float], Any] = time.sleep) -> None:
        self._folder = Path(folder)
        self._path = self._folder / NAME
        self._sleep = sleep
        self._file = -1
        self._flocked = True
        self._created = False
        self._content = json.dumps(
            {
                "name": f"process {os.getpid()} on {socket.gethostname()}",
                "boot": _boot_id(),
                "token": secrets.token_hex(8),
            }
        ).encode()

    def acquire(self) -> None:
        """Takes the lock, and creates the folder if it does not exist.

        Raises:
            UsageError: If another `fit` holds the lock, or the folder cannot be written.
        """
        try:
            self._created = not self._folder.is_dir()
            while not (self._locked() and self._others_are_silent()):
                self._close()
            self._write()
        except OSError as error:
            self._close()
            raise UsageError(f"--output_dir is {str(self._folder)!r}: cannot be written ({error})") from error
        except UsageError:
            self._close()
            raise

    def _locked(self) -> bool:
        """Opens and locks the file. Returns False if the process before has removed it meanwhile."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use(self._holder()) from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            self._flocked = False
        return self._is_own()

    def _others_are_silent(self) -> bool:
        """Returns False if the process that holds the lock without flock, as one of another machine may, gives it back.

        Raises:
            UsageError: If that process renews the lock.
        """
        holder = self._holder()
        if not holder or (self._flocked and holder.get("boot") == _boot_id()):
            return True
        modified = self._path.stat().st_mtime_ns
        _log.info(
            f"fit: {self._path}: {holder.get('name')} was killed or still trains; waiting {_SILENT_SECONDS:.0f} s to "
            "see whether it renews this file"
        )
        for _ in range(_CHECKS):
            self._sleep(_SILENT_SECONDS / _CHECKS)
            if not self._is_own():
                return False
            if self._path.stat().st_mtime_ns != modified:
                raise self._in_use(holder)
        return True

    def _holder(self) -> dict[str, Any]:
        """Returns who wrote the file; nothing if it is empty or incomplete."""
        try:
            holder = json.loads(os.pread(self._file, 1 << 12, 0))
        except (ValueError, RecursionError):
            return {}
        return holder if isinstance(holder, dict) else {}

    def _in_use(self, holder: dict[str, Any]) -> UsageError:
        return UsageError(
            f"--output_dir is {str(self._folder)!r}: another `fit` ({holder.get('name', 'just started')}) trains "
            "there; wait until it ends, stop it, or use another folder"
        )

    def _is_own(self) -> bool:
        """Whether the open file is still the one at the path."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.lstat())
        except FileNotFoundError:
            return False

    def _is_held(self) -> bool:
        """Whether no other process has removed the file or, after this one was silent, taken it over."""
        return self._is_own() and os.pread(self._file, 1 << 12, 0) == self._content

    def _write(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, self._content, 0)
        os.fsync(self._file)

    def renew(self) -> None:
        """Shows that this process lives.

        Raises:
            LostLockError: If the file was removed or replaced.
            OSError: If the file system does not answer.
        """
        if not self._is_held():
            raise LostLockError(f"{self._path}: removed or replaced; another `fit` may train there")
        os.utime(self._file)

    def release(self) -> None:
        """Removes the lock, and the folder if it was created for the lock and is empty."""
        if self._is_held():
            self._path.unlink()  # while it is locked: a process that has it open notices
        self._close()
        if self._created and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _boot_id() -> str:
    """Identifies the machine and its last boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:  # not Linux
        return f"{uuid.getnode():x}"
