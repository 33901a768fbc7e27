"""A lock's content, and the behavior that all kinds of locks share. See `dataset.lock`."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import LockLost, UsageError
from tokenmill_reader.format.json_text import parse_own_json

_SECONDS_BETWEEN_RENEWALS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CloudJob:
    """A Dataflow job."""

    project: str
    region: str
    name: str
    id: str | None = None
    """None until the job is submitted."""

    def __str__(self) -> str:
        return f"the Dataflow job {self.name}" + (f" ({self.id})" if self.id else "")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The content of a lock: the run that holds it."""

    run: str
    """A random id."""
    verb: str
    host: str
    """The machine of its launcher."""
    pid: int
    """The process id of its launcher."""
    boot: str
    """Identifies the machine and its last boot; several machines can have the same name."""
    since: str
    """When it took the lock, by its own clock. Only for messages."""
    fingerprint: str
    """The fingerprint of the dataset that it writes."""
    job: CloudJob | None = None
    """Its Dataflow job, if it has one."""
    renewed: bool = True
    """Whether its launcher still renews the lock."""

    @classmethod
    def this_process(cls, verb: str, fingerprint: str) -> Holder:
        return cls(
            run=uuid.uuid4().hex,
            verb=verb,
            host=socket.gethostname(),
            pid=os.getpid(),
            boot=_boot_id(),
            since=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            fingerprint=fingerprint,
        )

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Holder:
        """Parses a lock.

        Raises:
            UsageError: If the file is not a lock of this program.
        """
        try:
            fields = parse_own_json(data)
            job = fields.pop("job")
            return cls(**fields, job=CloudJob(**job) if job else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}: is not a lock that a run wrote; move it away, or choose another --output"
            ) from error

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        where = f"{self.job}, submitted by" if self.job else "run by"
        return f"{self.verb}, {where} process {self.pid} on {self.host}, since {self.since}"


def check_held(path: str, run: str) -> None:
    """Checks that a run still holds its lock. Call it before publishing a file.

    Raises:
        LockLost: If it does not.
    """
    output = path.rpartition("/")[0].rpartition("/")[0]
    if not filesystem.exists(path):
        raise LockLost(
            f"{path} was deleted, so this run stops: another run or a person may be using {output}"
        )
    data = filesystem.read_bytes(path)
    try:
        holder = Holder.from_json(data, path)
    except UsageError:
        holder = None
    if holder is None or holder.run != run:
        raise LockLost(f"{output}: another run has taken it over ({holder or 'unknown'}), so this run stops")


class Lock(ABC):
    """A lock that this process takes.

    Args:
        job_runs: Returns whether a Dataflow job is active. Raises a DataError if it cannot find out.
    """

    def __init__(self, path: str, holder: Holder, job_runs: Callable[[CloudJob], bool]):
        self.path = path
        self.holder = holder
        self._job_runs = job_runs
        self._writing = threading.Lock()
        self._kept = False
        self._ended = threading.Event()

    def check(self) -> None:
        """Checks that this run still holds the lock.

        Raises:
            LockLost: If it does not.
        """
        check_held(self.path, self.holder.run)

    def name_job(self, job: CloudJob, *, renewed: bool) -> None:
        """Records the Dataflow job that writes the folder.

        Args:
            job: The job.
            renewed: Whether this process keeps renewing the lock. If not, the lock belongs to the job from now on.
        """
        with self._writing:
            self.holder = replace(self.holder, job=job, renewed=renewed)
            self._write()
        if not renewed:
            self.keep()

    @property
    def kept(self) -> bool:
        """Whether the lock outlives this process."""
        return self._kept

    def keep(self) -> None:
        """Lets the lock outlive this process, because the job that it names may be running."""
        self._kept = True
        self._ended.set()

    @abstractmethod
    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            UsageError: If another run holds it. The message names the run.
        """

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def _write(self) -> None:
        """Writes `self.holder` to the lock.

        Raises:
            LockLost: If another run has taken the lock.
        """

    def _renew(self) -> None:
        self._write()

    def renew_until_ended(self) -> None:
        """Renews the lock every minute until it is released, kept or lost. Blocks, so it needs its own thread."""
        while not self._ended.wait(_SECONDS_BETWEEN_RENEWALS):
            try:
                with self._writing:
                    if not self._ended.is_set():
                        self._renew()
            except LockLost as error:
                _log.error("%s", error)
                return
            except OSError as error:
                _log.warning(
                    "%s: cannot renew the lock, trying again in %d s: %s",
                    self.path,
                    _SECONDS_BETWEEN_RENEWALS,
                    error,
                )

    def end(self) -> None:
        """Releases the lock, unless it is kept."""
        self._ended.set()
        with self._writing:
            if not self._kept:
                self.release()

    def _refuse(self, holder: Holder, remedy: str) -> None:
        output = self.path.rpartition("/")[0].rpartition("/")[0]
        raise UsageError(
            f"{output}: another run writes there ({holder}); wait until it ends, stop it, or choose another --output; "
            f"{remedy}"
        )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:  # not Linux
        return f"{uuid.getnode():x}"
