"""The lock of a folder: at most one run at a time writes there, from whatever machine.

The lock is the file `run.lock` in the folder's staging folder; it names the run that holds it. On a local file system
the launcher holds it with flock(2), so that it ends with the launcher, however that ends. In Cloud Storage it is an
object that is created on the condition that there is none; the launcher renews it, and a lock that was not renewed for
ten minutes (by the clock of the service) may be taken over, on the condition that it has not changed. A lock that
names a Dataflow job is only stale if that job has ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from beam_pipeline import filesystem
from beam_pipeline.dataset.lock_holder import CloudJob, Holder, Lock, check_held
from beam_pipeline.dataset.lock_kinds import FileLock, ObjectLock, PlainLock
from beam_pipeline.dataset.manifest import MANIFEST
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.errors import DataError, LockLost

NAME = "run.lock"

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(
    folder: str,
    *,
    verb: str,
    fingerprint: str,
    job_runs: Callable[[CloudJob], bool] | None = None,
) -> Iterator[Lock]:
    """Holds the lock of a folder, to be taken before anything in it is judged, written or deleted.

    Args:
      folder: the staging folder, in which the lock is.
      verb, fingerprint: what the run does, for others to read.
      job_runs: see `Lock`.

    Raises:
      UsageError: if another run holds it.
      OSError: if the folder cannot be written to.
    """
    path = filesystem.join(folder, NAME)
    kind = FileLock if filesystem.is_local(path) else ObjectLock if filesystem.is_bucket(path) else PlainLock
    lock = kind(path, Holder.this_process(verb, fingerprint), job_runs or _refuse_to_ask)
    lock.acquire()
    threading.Thread(target=lock.renew_until_the_end, daemon=True).start()
    try:
        yield lock
    except BaseException:
        try:
            lock.end()
        except (OSError, LockLost) as error:
            _log.warning("%s could not be released: %s", path, error)
        raise
    lock.end()


def hold_dataset(dataset: str, *, verb: str) -> contextlib.AbstractContextManager[Lock]:
    """Holds the lock of a finished dataset, for a verb that adds files to it.

    Args:
      dataset: the dataset's folder, or that of one of its splits.
      verb: what is added.
    """
    of_split = filesystem.exists(filesystem.join(dataset, MANIFEST))
    output = dataset.rpartition("/")[0] if of_split else dataset
    return hold(filesystem.join(output, STAGING), verb=verb, fingerprint="")


def release_of_job(path: str, run: str) -> None:
    """Deletes the lock of a run that is a job, as the job's last act; it may be gone already."""
    if filesystem.exists(path):
        check_held(path, run)
        filesystem.delete([path])


def _refuse_to_ask(job: CloudJob) -> bool:
    raise DataError(f"this verb cannot ask Dataflow whether {job} is active")
