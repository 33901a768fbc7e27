"""How a lock is taken, by kind of file system. See `dataset.lock`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from beam_pipeline import buckets, filesystem
from beam_pipeline.dataset.lock_holder import Holder, Lock
from beam_pipeline.errors import DataError, LockLost, UsageError

STALE_AFTER = timedelta(minutes=10)
_ATTEMPTS = 20
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FileLock(Lock):
    """On a local file system, by flock(2); by the file's existence if there is no flock."""

    _file: int | None = None
    _made: tuple[str, ...] = ()

    def acquire(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self._make_folders()
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:  # a run that just ended has removed the folder
                continue
            except FileExistsError:  # or has removed it while it was made
                if Path(self.path).parent.exists():
                    raise
                continue
            try:
                taken = self._take(file)
            except BaseException:
                os.close(file)
                self._remove_folders()
                raise
            if taken:
                self._file = file
                try:
                    self._write()
                except BaseException:
                    self.release()
                    raise
                return
            os.close(file)
        raise UsageError(f"{self.path}: cannot be locked: other runs take and leave it all the time")

    def _take(self, file: int) -> bool:
        """Locks the open file; False if it is no longer the one at the lock's path."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._refuse(self._read(file), "if it hangs, end its process")
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return self._take_without_flock(file)
        try:
            there = Path(self.path).lstat()
        except FileNotFoundError:
            return False
        if (there.st_dev, there.st_ino) != (os.fstat(file).st_dev, os.fstat(file).st_ino):
            return False
        if os.fstat(file).st_size:
            self._check_dead(self._read(file), file)
        return True

    def _check_dead(self, holder: Holder, file: int) -> None:
        """Refuses a lock whose holder may be alive on another machine: not every file system shares flock."""
        if holder.boot == self.holder.boot:  # flock would have refused it
            return
        with open(f"{self.path}.time-{self.holder.run}", "wb") as probe:  # noqa: PTH123 (as the lock itself)
            silent = (
                os.fstat(probe.fileno()).st_mtime - os.fstat(file).st_mtime
            )  # both by the file server's clock
        Path(probe.name).unlink(missing_ok=True)
        if silent < STALE_AFTER.total_seconds():
            self._refuse(
                holder,
                f"it was on another machine and alive {silent:.0f} s ago; the lock is free when it is silent for "
                f"{STALE_AFTER}; if you know that it has ended, delete {self.path}",
            )

    def _take_without_flock(self, file: int) -> bool:
        """By a file that only one of two runs can create; if one is there, only a person knows if its run is alive."""
        claim = f"{self.path}.held"
        try:
            os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            self._refuse(
                self._read(file),
                f"this file system has no file locks, so if that run has ended, delete {claim}",
            )
        return True

    def _read(self, file: int) -> Holder:
        data = os.pread(file, 1 << 16, 0)
        if not data:  # just created by a run that is about to write it
            return replace(self.holder, host="?", pid=0, since="just now")
        return Holder.from_json(data, self.path)

    def _write(self) -> None:
        data = self.holder.to_json()
        with filesystem.plain_errors(self.path):
            os.ftruncate(self._file, 0)
            if os.pwrite(self._file, data, 0) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _renew(self) -> None:
        os.utime(self._file)

    def release(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            there = Path(self.path).lstat()
            if (there.st_dev, there.st_ino) == (os.fstat(self._file).st_dev, os.fstat(self._file).st_ino):
                Path(self.path).unlink()  # while it is locked: who opened it before sees that it is gone
        Path(f"{self.path}.held").unlink(missing_ok=True)
        os.close(self._file)
        self._file = None
        self._remove_folders()

    def _make_folders(self) -> None:
        folder = Path(self.path).parent
        missing = [str(path) for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        self._made = tuple(dict.fromkeys([*self._made, *missing]))

    def _remove_folders(self) -> None:
        """The folders made for the lock, if nothing else has come into them."""
        for folder in (str(Path(self.path).parent), *self._made):
            filesystem.remove_empty(folder)


class ObjectLock(Lock):
    """In Cloud Storage, by the object's generation."""

    _generation = 0

    def acquire(self) -> None:
        with filesystem.plain_errors(self.path):
            for _ in range(_ATTEMPTS):
                written = buckets.write_if(self.path, self.holder.to_json(), self._generation)
                if written:
                    self._generation = written.generation
                    return
                found = buckets.read_version(self.path)
                if found is None:
                    self._generation = 0
                    continue
                self._generation = found.generation
                holder = Holder.from_json(found.data, self.path)
                if holder.run == self.holder.run:  # the answer to our own attempt was lost
                    return
                self._check_stale(holder, found.updated)
        raise UsageError(f"{self.path}: cannot be locked: other runs take and leave it all the time")

    def _check_stale(self, holder: Holder, updated: datetime) -> None:
        if holder.renewed:
            silent = buckets.time_of_service(self.path) - updated
            if silent < STALE_AFTER:
                self._refuse(
                    holder,
                    f"it was alive {silent.total_seconds():.0f} s ago; if it has died, its lock can be taken over "
                    f"{STALE_AFTER} after its last sign of life, or now, if you delete {self.path}",
                )
        if holder.job:
            try:
                active = self._job_runs(holder.job)
            except DataError as error:
                self._refuse(holder, f"{error}; if the job has ended, delete {self.path}")
            if active:
                self._refuse(holder, "the job is active")

    def _write(self) -> None:
        with filesystem.plain_errors(self.path):
            data = self.holder.to_json()
            for _ in range(_ATTEMPTS):
                written = buckets.write_if(self.path, data, self._generation)
                if written is None:  # the answer to an attempt was lost, unless another run has written
                    written = self._own_version()
                self._generation = written.generation
                if written.data == data:
                    return
        raise OSError(f"{self.path}: could not be written")

    def _renew(self) -> None:
        if self.holder.job and not filesystem.exists(self.path):  # the job has ended, and given it up
            self.keep()
        else:
            self._write()

    def _own_version(self) -> buckets.ObjectVersion:
        found = buckets.read_version(self.path)
        if found is None or Holder.from_json(found.data, self.path).run != self.holder.run:
            raise LockLost(f"{self.path}: another run has taken this lock over, so this run stops")
        return found

    def release(self) -> None:
        with filesystem.plain_errors(self.path):  # gone already, if a job has given it up
            if buckets.delete_if(self.path, self._generation) or not filesystem.exists(self.path):
                return
            buckets.delete_if(self.path, self._own_version().generation)


class PlainLock(Lock):
    """On other file systems, none of which Beam can write to on a condition: it keeps out runs that come later, not
    those that come at the same moment."""

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
