"""A lock's content, and what every kind of lock does. See `dataset.lock`."""

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

from beam_pipeline import filesystem
from beam_pipeline.errors import LockLost, UsageError
from beam_pipeline.parsing import parse_own_json

_SECONDS_BETWEEN_RENEWALS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CloudJob:
    """A Dataflow job; its id is None until it is submitted."""

    project: str
    region: str
    name: str
    id: str | None = None

    def __str__(self) -> str:
        return f"the Dataflow job {self.name}" + (f" ({self.id})" if self.id else "")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The content of a lock: the run that holds it.

    Attributes:
      run: its id.
      verb: what it does.
      host, pid: of its launcher.
      boot: tells machines of the same name apart, and a machine from itself before it was restarted.
      since: when it took the lock, by its own clock; only for messages.
      fingerprint: of what it makes.
      job: its Dataflow job, if it has one.
      renewed: whether its launcher still renews the lock.
    """

    run: str
    verb: str
    host: str
    pid: int
    boot: str
    since: str
    fingerprint: str
    job: CloudJob | None = None
    renewed: bool = True

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
        """Raises a UsageError if the file is none of this program's locks."""
        try:
            fields = parse_own_json(data)
            job = fields.pop("job")
            return cls(**fields, job=CloudJob(**job) if job else None)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}: is in the way, and is no lock of a run; move it away, or name another --output"
            ) from error

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        where = f"{self.job}, submitted by" if self.job else "run by"
        return f"{self.verb}, {where} process {self.pid} on {self.host}, since {self.since}"


def check_held(path: str, run: str) -> None:
    """Checks that a run still holds its lock: to be called before something is published.

    Raises:
      LockLost: if it does not.
    """
    output = path.rpartition("/")[0].rpartition("/")[0]
    if not filesystem.exists(path):
        raise LockLost(f"{path} is gone, so this run stops: another run, or a person, may be using {output}")
    data = filesystem.read_bytes(path)
    try:
        holder = Holder.from_json(data, path)
    except UsageError:
        holder = None
    if holder is None or holder.run != run:
        raise LockLost(f"{output}: another run has taken it over ({holder or 'unknown'}), so this one stops")


class Lock(ABC):
    """A lock that this process takes.

    Args:
      path: of the lock.
      holder: this run.
      job_runs: tells whether a Dataflow job is active; raises a DataError if that cannot be found out.
    """

    def __init__(self, path: str, holder: Holder, job_runs: Callable[[CloudJob], bool]):
        self.path = path
        self.holder = holder
        self._job_runs = job_runs
        self._writing = threading.Lock()
        self._kept = False
        self._ended = threading.Event()

    def check(self) -> None:
        """Raises a LockLost if another run has taken the lock."""
        check_held(self.path, self.holder.run)

    def name_job(self, job: CloudJob, *, renewed: bool) -> None:
        """Records the Dataflow job that writes the folder; with `renewed` False, the lock is the job's from now on."""
        with self._writing:
            self.holder = replace(self.holder, job=job, renewed=renewed)
            self._write()
        if not renewed:
            self.keep()

    @property
    def kept(self) -> bool:
        """Whether the lock stays in place when this process has ended."""
        return self._kept

    def keep(self) -> None:
        """Leaves the lock in place when this process has ended: the job that it names may be running."""
        self._kept = True
        self._ended.set()

    @abstractmethod
    def acquire(self) -> None:
        """Takes the lock, or raises a UsageError that names the run that holds it."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def _write(self) -> None:
        """Writes `self.holder`. Raises a LockLost if the lock is another run's."""

    def _renew(self) -> None:
        self._write()

    def renew_until_the_end(self) -> None:
        """For a thread of its own: renews the lock now and then, until it is released, kept or lost."""
        while not self._ended.wait(_SECONDS_BETWEEN_RENEWALS):
            try:
                with self._writing:
                    if not self._ended.is_set():
                        self._renew()
            except LockLost as error:
                _log.error("%s", error)
                return
            except OSError as error:
                _log.warning("%s could not be renewed, and will be tried again: %s", self.path, error)

    def end(self) -> None:
        """Releases the lock, unless it is kept."""
        self._ended.set()
        with self._writing:
            if not self._kept:
                self.release()

    def _refuse(self, holder: Holder, remedy: str) -> None:
        output = self.path.rpartition("/")[0].rpartition("/")[0]
        raise UsageError(
            f"{output}: another run writes there ({holder}); wait for its end or stop it, or name another --output; "
            f"{remedy}"
        )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:  # not Linux
        return f"{uuid.getnode():x}"
