"""Finds damaged checkpoints. The processes that train together verify one together, and come to the same result.

Each reads a share of the files and compares their checksums; all compare names and sizes. On Cloud Storage, whose
listing has the checksums, no file is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tpu_trainer.runs import marker
from tpu_trainer.runs.channel import Channel
from tpu_trainer.runs.marker import Marker
from tpu_trainer.support import files
from tpu_trainer.support.errors import InterruptedRun, UsageError

WriteErrors = (OSError, tf.errors.OpError)
"""Exceptions caused by a full disk, a lost network or missing permissions."""
_WHOLE = [None, None]


class Verification:
    """The verification of checkpoints by the processes of a channel, which must call its methods in the same order."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def agreed(self, value: Any) -> Any:
        """Returns the value, as in JSON, with which process 0 calls this; raises InterruptedRun if it is lost."""
        with self._waiting_for_others():
            return json.loads(self._channel.from_first(json.dumps(value)))

    def damage(self, folder: str, step: int, *, contents: bool) -> tuple[str | None, bool]:
        """Verifies a complete checkpoint. Without `contents`, compares only names and sizes.

        Returns:
            What the first process with damage says; None if there is none. And whether the checkpoint still exists.

        Raises:
            UsageError: If a process cannot read it.
            InterruptedRun: If another process is lost.
        """
        report = json.dumps(self._own_report(folder, step, contents=contents))
        with self._waiting_for_others():
            reports = map(json.loads, self._channel.gather(report))
        first = next((each for each in reports if each != _WHOLE), _WHOLE)
        exists = first == _WHOLE or files.is_file(files.join(folder, marker.NAME))
        damage, unreadable, exists = self.agreed([*first, exists])
        if unreadable is not None:
            raise UsageError(f"{folder}: cannot be read ({unreadable})")
        return damage, exists

    def _own_report(self, folder: str, step: int, *, contents: bool) -> list[str | None]:
        """Returns the damage that this process finds, and why it cannot read the checkpoint; None: nothing."""
        path = files.join(folder, marker.NAME)
        try:
            listed = Marker.parse(files.read_text(path), step=step)
            share = listed.share(self._channel.index, self._channel.count) if contents else ()
            return [listed.damage_of(folder, contents=share), None]
        except WriteErrors as error:
            return [None, str(error)] if files.is_file(path) else [f"{marker.NAME} is missing", None]
        except ValueError as error:  # not JSON, not UTF-8, or damaged
            return [f"{marker.NAME}: {error}", None]

    @contextmanager
    def _waiting_for_others(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InterruptedRun(
                f"a checkpoint is not verified ({error}); the same command on all hosts tries again"
            ) from error
