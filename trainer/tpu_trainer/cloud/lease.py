"""The right to follow a run: of several `launch` for one run folder, only one has it.

It is a file in the run's folder, which its holder rewrites all the time. Whoever finds it waits to see whether it
changes: if so, its holder lives; if not, the right is taken over. So no two machines' clocks have to agree.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, RefusedError, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.errors import CloudError
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

_PATIENCE = 60.0
"""Seconds beyond two of its looks in which a living holder has written."""
_LOOKS = 4
_ATTEMPTS = 5


class LostLeaseError(CloudError):
    """Another `launch` follows the run; what runs on Google Cloud is for that one to end."""


class Lease:
    """The right to follow the run of `config`. `take` and `renew` raise LostLeaseError if another `launch` has it.

    Args:
        api: Cloud Storage's.
        config: Names the run.
        sleep: Waits some seconds.
        say: Shows a line.
    """

    def __init__(
        self,
        api: Api,
        config: LaunchConfig,
        *,
        sleep: Callable[[float], Any],
        say: Callable[[str], None],
    ) -> None:
        self._api = api
        self._sleep = sleep
        self._say = say
        self._url = files.join(config.output_dir, LAUNCH_FOLDER, "launcher.json")
        self._poll = config.cloud.poll_seconds
        self._place = f"{config.cloud.service} {config.cloud.project}/{config.cloud.zone}/{config.name}"
        self._generation: str | None = None
        self._token = secrets.token_hex(8)

    def take(self) -> None:
        """Takes it: at once if it is free, else when its holder has not written for some time."""
        generation = self._api.object_generation(self._url)
        if generation != "0":
            holder = self._holder()
            seconds = 2 * float(holder.get("poll_seconds", 0)) + _PATIENCE
            self._say(
                f"{self._url}: another `launch` ({_who(holder)}) follows this run or was killed; looks for "
                f"{seconds:.0f} s whether it still writes there"
            )
            for _ in range(_LOOKS):
                self._sleep(seconds / _LOOKS)
                if self._api.object_generation(self._url) != generation:
                    raise LostLeaseError(f"{self._url}: another `launch` ({_who(holder)}) follows this run")
            if holder.get("place", self._place) != self._place:
                raise CloudError(
                    f"{self._url}: a `launch` that was killed trained this run as {holder['place']}, and this command "
                    f"would as {self._place}: give the same --cloud options, or delete what is left, then that file"
                )
        for attempt in range(_ATTEMPTS):
            try:
                return self._write(generation)
            except UnansweredError:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._sleep(1)

    def renew(self) -> None:
        """Shows that its holder lives. If Cloud Storage does not answer now, the next call does that."""
        if self._generation is None:
            return
        try:
            self._write(self._generation)
        except UnansweredError as error:
            self._say(f"{self._url}: not renewed yet: {error}")

    def release(self) -> None:
        """Gives it back, if it is held. If that fails, the next `launch` waits a little."""
        if self._generation is None:
            return
        try:
            self._api.delete_object(self._url, generation=self._generation)
        except CloudError as error:
            self._say(f"{self._url}: not removed: {error}")
        self._generation = None

    def _holder(self) -> dict[str, Any]:
        return json.loads(self._api.read_object(self._url) or "{}")

    def _write(self, generation: str) -> None:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": self._token,
            "poll_seconds": self._poll,
            "place": self._place,
        }
        try:
            self._generation = self._api.write_object(self._url, content, generation=generation)
        except RefusedError as error:
            if error.code != 412:
                raise
            # It may be a write of ours, whose answer was lost, that has made another generation of it.
            holder = self._holder()
            if holder.get("token") != self._token:
                self._generation = None
                raise LostLeaseError(
                    f"{self._url}: another `launch` ({_who(holder)}) follows this run now"
                ) from error
            self._generation = self._api.object_generation(self._url)


def _who(holder: dict[str, Any]) -> str:
    return f"process {holder['pid']} on {holder['host']}" if holder else "of which nothing is known"
