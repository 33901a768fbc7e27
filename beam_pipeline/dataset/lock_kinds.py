"""The locks of local file systems, Cloud Storage and other file systems. See `dataset.lock`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from beam_pipeline.dataset.lock_holder import Holder, Lock
from beam_pipeline.support import buckets, filesystem, local_files
from beam_pipeline.support.errors import DataError, FileError, LockLost, UsageError
from beam_pipeline.support.file_errors import plain_errors

STALE_AFTER = timedelta(minutes=10)
_ATTEMPTS = 20
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FileLock(Lock):
    """The lock on a local file system: flock(2), or a file's existence if there is no flock."""

    _file: int | None = None
    _created_folders: tuple[str, ...] = ()

    def acquire(self) -> None:
        missing_error: OSError | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._make_folders()
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError as error:  # a run that just ended has removed the folder
                missing_error = error
                continue
            except FileExistsError as error:  # a run that just ended has removed the folder while mkdir ran
                if Path(self.path).parent.exists():
                    raise
                missing_error = error
                continue
            try:
                is_locked = self._lock_file(file)
            except BaseException:
                os.close(file)
                self._remove_folders()
                raise
            if is_locked:
                self._file = file
                try:
                    self._write()
                except BaseException:
                    self.release()
                    raise
                return
            os.close(file)
        link = local_files.dangling_link(str(Path(self.path).parent))
        if link is not None:
            raise UsageError(
                f"{link}: is a symbolic link to {link.readlink()}, which does not exist; remove it"
            )
        if missing_error is not None:
            raise UsageError(f"{self.path}: cannot be created: {missing_error}; choose another --output")
        raise UsageError(
            f"{self.path}: cannot be locked, because other runs keep locking and releasing it; try again"
        )

    def _lock_file(self, file: int) -> bool:
        """Locks the open file. Returns False if it is no longer the file at the lock's path."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._refuse(self._read(file), "if it hangs, kill its process")
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return self._lock_without_flock(file)
        try:
            at_path = Path(self.path).lstat()
        except FileNotFoundError:
            return False
        if (at_path.st_dev, at_path.st_ino) != (os.fstat(file).st_dev, os.fstat(file).st_ino):
            return False
        if os.fstat(file).st_size:
            self._check_dead(self._read(file), file)
        return True

    def _check_dead(self, holder: Holder, file: int) -> None:
        """Checks that the lock's holder is not alive on another machine. Not every network file system shares flock.

        Raises:
            UsageError: If it may be alive.
        """
        if holder.boot == self.holder.boot:  # flock would have refused it
            return
        with open(f"{self.path}.time-{self.holder.run}", "wb") as probe:  # noqa: PTH123 (as the lock itself)
            # Both times are by the file server's clock.
            age = os.fstat(probe.fileno()).st_mtime - os.fstat(file).st_mtime
        Path(probe.name).unlink(missing_ok=True)
        if age < STALE_AFTER.total_seconds():
            self._refuse(
                holder,
                f"it is on another machine and was alive {age:.0f} s ago; its lock expires {STALE_AFTER} after its "
                f"last sign of life; if you know that it has ended, delete {self.path}",
            )

    def _lock_without_flock(self, file: int) -> bool:
        """Locks by creating a second file, which only one run can do. Only a person can tell if that run is alive.

        Raises:
            UsageError: If the second file exists.
        """
        claim = f"{self.path}.held"
        try:
            os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            self._refuse(
                self._read(file),
                f"this file system does not support flock, so if that run has ended, delete {claim}",
            )
        return True

    def _read(self, file: int) -> Holder:
        data = os.pread(file, 1 << 16, 0)
        if not data:  # another run has just created it and is about to write it
            return replace(self.holder, host="?", pid=0, since="just now")
        return Holder.from_json(data, self.path)

    def _write(self) -> None:
        data = self.holder.to_json()
        with plain_errors(self.path):
            os.ftruncate(self._file, 0)
            if os.pwrite(self._file, data, 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _renew(self) -> None:
        os.utime(self._file)

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            at_path = Path(self.path).lstat()
            if (at_path.st_dev, at_path.st_ino) == (os.fstat(self._file).st_dev, os.fstat(self._file).st_ino):
                Path(self.path).unlink()  # while locked, so that runs that have it open notice the deletion
        Path(f"{self.path}.held").unlink(missing_ok=True)
        os.close(self._file)
        self._file = None
        self._remove_folders()

    def _make_folders(self) -> None:
        folder = Path(self.path).parent
        missing = [str(path) for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._created_folders = tuple(dict.fromkeys([*self._created_folders, *missing]))

    def _remove_folders(self) -> None:
        """Removes the folders that were created for the lock, if they are empty."""
        for folder in (str(Path(self.path).parent), *self._created_folders):
            local_files.remove_empty(folder)


class ObjectLock(Lock):
    """The lock in Cloud Storage: an object whose writes depend on its generation."""

    _generation = 0

    def acquire(self) -> None:
        with plain_errors(self.path):
            for _ in range(_ATTEMPTS):
                written = buckets.write_if(self.path, self.holder.to_json(), self._generation)
                if written:
                    self._generation = written.generation
                    return
                current = buckets.read_version(self.path)
                if current is None:
                    self._generation = 0
                    continue
                self._generation = current.generation
                holder = Holder.from_json(current.data, self.path)
                if holder.run == self.holder.run:  # this run wrote it, but the response was lost
                    return
                self._check_stale(holder, current.updated)
        raise UsageError(
            f"{self.path}: cannot be locked, because other runs keep locking and releasing it; try again"
        )

    def _check_stale(self, holder: Holder, updated: datetime) -> None:
        if holder.renewed:
            age = buckets.service_time(self.path) - updated
            if age < STALE_AFTER:
                self._refuse(
                    holder,
                    f"it was alive {age.total_seconds():.0f} s ago; its lock expires {STALE_AFTER} after its last "
                    f"sign of life; if you know that it has ended, delete {self.path}",
                )
        if holder.job:
            try:
                active = self._job_runs(holder.job)
            except DataError as error:
                self._refuse(holder, f"{error}; if the job has ended, delete {self.path}")
            if active:
                self._refuse(holder, "the job is active")

    def _write(self) -> None:
        with plain_errors(self.path):
            data = self.holder.to_json()
            for _ in range(_ATTEMPTS):
                written = buckets.write_if(self.path, data, self._generation)
                if written is None:  # the response to an attempt was lost, or another run has written
                    written = self._own_version()
                self._generation = written.generation
                if written.data == data:
                    return
        raise FileError(f"{self.path}: cannot be written")

    def _renew(self) -> None:
        if self.holder.job and not filesystem.exists(self.path):  # the job has ended and deleted the lock
            self.keep()
        else:
            self._write()

    def _own_version(self) -> buckets.ObjectVersion:
        current = buckets.read_version(self.path)
        if current is None or Holder.from_json(current.data, self.path).run != self.holder.run:
            raise LockLost(f"{self.path}: another run has taken this lock over, so this run stops")
        return current

    def release(self) -> None:
        with plain_errors(self.path):  # the job may have deleted the lock already
            if buckets.delete_if(self.path, self._generation) or not filesystem.exists(self.path):
                return
            buckets.delete_if(self.path, self._own_version().generation)


class PlainLock(Lock):
    """The lock on other file systems, where Beam has no conditional writes.

    It excludes runs that start later, but not runs that start at the same moment.
    """

    def acquire(self) -> None:
        if filesystem.exists(self.path):
            holder = Holder.from_json(filesystem.read_bytes(self.path), self.path)
            self._refuse(holder, f"if it has ended, delete {self.path}")
        self._write()
        self.check()

    def _write(self) -> None:
        filesystem.write_bytes(self.path, self.holder.to_json())

    def _renew(self) -> None:
        self.check()

    def release(self) -> None:
        self.check()
        filesystem.delete([self.path])
