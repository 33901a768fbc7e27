"""A lease on a run folder, so that only one `launch` at a time manages the run, and only one `fit` writes it.

The lease is a file in the run folder that its holder rewrites continually. A process that finds it waits to see whether
the file changes. If it does, the holder is alive; if not, the process takes the lease over. This requires no
synchronized clocks.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from tpu_trainer.cloud.google import RefusedError, UnansweredError
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.support.errors import CloudError

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_GRACE_SECONDS = 60.0
"""A live holder writes within two of its polling intervals and this many seconds."""
_CHECKS = 4
_ATTEMPTS = 5


class LostLeaseError(CloudError):
    """Another process of the verb manages the run (for `launch`: and its resources on Google Cloud)."""


class Lease:
    """A lease. `acquire` and `renew` raise LostLeaseError if another process holds it."""

    def __init__(
        self,
        objects: Objects,
        url: str,
        *,
        verb: str,
        poll_seconds: float,
        target: str,
        sleep: Callable[[float], Any],
    ) -> None:
        """
        Args:
            objects: Has the object.
            url: The object.
            verb: The verb that holds the lease.
            poll_seconds: Seconds between two calls of `renew`.
            target: What the holder manages. A process with another one does not take over from a killed holder.
            sleep: Waits a number of seconds.
        """
        self._objects = objects
        self._url = url
        self._verb = verb
        self._poll = poll_seconds
        self._target = target
        self._sleep = sleep
        self._generation: int | None = None
        self._token = secrets.token_hex(8)

    def acquire(self) -> None:
        """Acquires the lease: at once if it is free, otherwise once its holder releases it or stops renewing it."""
        generation = self._patiently(lambda: self._objects.generation(self._url))
        if generation:
            holder = self._holder()
            seconds = 2 * float(holder.get("poll_seconds", 0)) + _GRACE_SECONDS
            _log.info(
                f"{self._verb}: {self._url}: another `{self._verb}` ({_describe_holder(holder)}) manages this run or "
                f"was killed; waiting {seconds:.0f} s to see whether it still updates this file"
            )
            for _ in range(_CHECKS):
                self._sleep(seconds / _CHECKS)
                current_generation = self._patiently(lambda: self._objects.generation(self._url))
                if current_generation == 0:  # released
                    return self.acquire()
                if current_generation != generation:
                    raise LostLeaseError(
                        f"{self._url}: another `{self._verb}` ({_describe_holder(holder)}) manages this run"
                    )
            if holder.get("place", self._target) != self._target:
                raise CloudError(
                    f"{self._url}: a killed `{self._verb}` trained this run as {holder['place']}, but this command "
                    f"would train it as {self._target}; use the same --cloud options, or delete that resource and "
                    "this file"
                )
        self._patiently(lambda: self._write(generation))

    def _patiently(self, call: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `call`, which is retried a few times if Cloud Storage does not respond."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return call()
            except UnansweredError:
                self._sleep(1)
        return call()

    def renew(self) -> None:
        """Rewrites the file. If Cloud Storage does not respond, the next call tries again."""
        if self._generation is None:
            return
        try:
            self._write(self._generation)
        except UnansweredError as error:
            _log.warning(f"{self._verb}: {self._url}: not renewed yet: {error}")

    def release(self) -> None:
        """Releases the lease, if held. If that fails, the next process waits as it does for a killed one."""
        if self._generation is None:
            return
        try:
            self._patiently(lambda: self._objects.delete(self._url, generation=self._generation))
        except CloudError as error:
            _log.warning(f"{self._verb}: {self._url}: not removed: {error}")
        self._generation = None

    def _holder(self) -> dict[str, Any]:
        """Returns what the file says of its writer; nothing if it is gone.

        Raises:
            LostLeaseError: If another program has written the file.
        """
        text = self._patiently(lambda: self._objects.read(self._url)) or "{}"
        try:
            holder = json.loads(text)
            if holder != {}:
                _describe_holder(holder)
                float(holder.get("poll_seconds", 0))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LostLeaseError(
                f"{self._url}: not a file that `{self._verb}` writes: {text[:80]!r}; "
                f"delete it if no `{self._verb}` manages this run"
            ) from error
        return holder

    def _write(self, generation: int) -> None:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": self._token,
            "poll_seconds": self._poll,
            "place": self._target,
        }
        try:
            self._generation = self._objects.write(self._url, content, generation=generation)
        except RefusedError as error:
            if error.code != 412:
                raise
            # A write of this process whose response was lost may have changed the generation.
            holder = self._holder()
            if holder.get("token") != self._token:
                self._generation = None
                raise LostLeaseError(
                    f"{self._url}: another `{self._verb}` ({_describe_holder(holder)}) has taken this run over"
                ) from error
            self._generation = self._objects.generation(self._url)


def _describe_holder(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if holder != {} else "unknown process"
