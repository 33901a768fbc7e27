"""The lock of an output folder: at most one run writes there at a time, across machines.

The lock is the file `run.lock` in the staging folder. Its content describes the run that holds it. On a local file
system the launcher holds it with flock(2), so the lock ends when the launcher's process does. In Cloud Storage it is an
object that is created only if none exists, and the launcher renews it. If it was not renewed for ten minutes (by the
service's clock), another run may take it over, provided that it has not changed. A lock that names a Dataflow job is
stale only if that job has ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

from beam_pipeline.dataset.lock_holder import CloudJob, Holder, Lock, check_held
from beam_pipeline.dataset.lock_kinds import FileLock, ObjectLock, PlainLock
from beam_pipeline.dataset.manifest import finished_splits, no_dataset_reason
from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, LockLost
from tokenmill_reader.format.names import MANIFEST

NAME = "run.lock"

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def hold(
    folder: str, *, verb: str, fingerprint: str, job_runs: Callable[[CloudJob], bool] | None = None
) -> Iterator[Lock]:
    """Holds the lock of an output folder. A run takes it before it examines, writes or deletes anything there.

    Args:
        folder: The staging folder, which contains the lock.
        job_runs: See `Lock`.

    Raises:
        UsageError: If another run holds the lock.
        OSError: If the folder cannot be written to.
    """
    path = filesystem.join(folder, NAME)
    lock_class = (
        FileLock if filesystem.is_local(path) else ObjectLock if filesystem.is_bucket(path) else PlainLock
    )
    lock = lock_class(path, Holder.this_process(verb, fingerprint), job_runs or _cannot_ask_dataflow)
    lock.acquire()
    threading.Thread(target=lock.renew_until_ended, daemon=True).start()
    try:
        yield lock
    except BaseException:
        try:
            lock.end()
        except (OSError, LockLost) as error:
            _log.warning("%s: cannot release the lock: %s", path, error)
        raise
    lock.end()


def hold_dataset(dataset: str, *, verb: str) -> contextlib.AbstractContextManager[Lock]:
    """Holds the lock of a finished dataset, or of the dataset of a split, for a verb that adds files to it.

    Raises:
        DataError: If there is none.
    """
    is_split = filesystem.exists(filesystem.join(dataset, MANIFEST))
    if not is_split and not finished_splits(dataset):
        raise DataError(no_dataset_reason(dataset))
    output = dataset.rpartition("/")[0] if is_split else dataset
    return hold(filesystem.join(output, STAGING), verb=verb, fingerprint="")


def release_job_lock(path: str, run: str) -> None:
    """Deletes the lock of a Dataflow job's run, in the job's last step. Does nothing if it is already deleted."""
    if filesystem.exists(path):
        check_held(path, run)
        filesystem.delete([path])


def _cannot_ask_dataflow(job: CloudJob) -> bool:
    raise DataError(f"this verb cannot ask Dataflow whether {job} is active")
