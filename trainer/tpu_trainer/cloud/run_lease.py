"""The lock of a run's folder in Cloud Storage: a lease that `fit` renews."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from tpu_trainer.cloud.google import RefusedError
from tpu_trainer.cloud.lease import Lease, LostLeaseError
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.runs.run_lock import NAME, RENEWAL_SECONDS, LostLockError
from tpu_trainer.support import files
from tpu_trainer.support.errors import CloudError, UsageError

_log = logging.getLogger(__name__)


class RunLease:
    """A `run_lock.RunLock`."""

    def __init__(self, folder: str, objects: Objects, *, sleep: Callable[[float], Any] = time.sleep) -> None:
        self._folder = folder
        self._lease = Lease(
            objects,
            files.join(folder, NAME),
            verb="fit",
            poll_seconds=RENEWAL_SECONDS,
            target=folder,
            sleep=sleep,
        )

    def acquire(self) -> None:
        """Takes the lease, after the time in which a live holder renews it.

        Raises:
            UsageError: If another `fit` holds it, or Cloud Storage refuses to write it.
            CloudError: If Cloud Storage does not answer.
        """
        try:
            self._lease.acquire()
        except LostLeaseError as error:
            raise UsageError(f"{error}; wait until it ends, stop it, or use another --output_dir") from error
        except RefusedError as error:
            raise UsageError(f"--output_dir is {self._folder!r}: cannot be written ({error})") from error

    def renew(self) -> None:
        """Renews the lease; raises LostLockError if another `fit` has taken it over."""
        try:
            self._lease.renew()
        except LostLeaseError as error:
            raise LostLockError(str(error)) from error
        except CloudError as error:
            _log.warning(f"fit: {error}; trying again")

    def release(self) -> None:
        """Gives the lease back."""
        self._lease.release()
