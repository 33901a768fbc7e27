"""Checkpoints that are complete or absent.

A checkpoint is a folder step-<step> with a complete.json, which is written last. Without that file it is unfinished: it
is never read, and the next save removes it. So is one that is damaged, as the checksums in that file show.

All processes that train together write a checkpoint: each its own parts of the state, into files of its own. When all
have, process 0 joins the files to one checkpoint and writes complete.json.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf

from tpu_trainer.runs import marker
from tpu_trainer.runs.channel import Channel
from tpu_trainer.runs.marker import Marker
from tpu_trainer.runs.parts import Parts, StoredArray, stored_arrays, write_parts
from tpu_trainer.runs.verification import Verification, WriteErrors
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)

_FOLDER_NAME = re.compile(r"^step-(\d+)$")
_VALIDATION_LOSS = "validation_loss"
_STATE = "state"
"""The prefix of the files of TensorFlow's checkpoint."""
_EXISTS = "exists"

State = Mapping[str, "tf.Variable | State"]
"""Name of a part of the checkpoint → variable, or name → variable."""


def named_variables(state: State) -> dict[str, tf.Variable]:
    """Returns name in checkpoints → variable.

    Example: {"optimizer": {"step": a}, "running": b} → {"optimizer/step": a, "running": b}
    """
    variables: dict[str, tf.Variable] = {}
    for part, value in state.items():
        if isinstance(value, Mapping):
            variables |= {f"{part}/{name}": variable for name, variable in named_variables(value).items()}
        else:
            variables[part] = value
    return variables


class Checkpoints:
    """The checkpoints of a run, in a folder (local or a URL)."""

    def __init__(self, folder: str, *, keep: int = 1, channel: Channel | None = None) -> None:
        """Keeps the `keep` newest checkpoints, and the one with the lowest validation loss.

        The processes of `channel` write them together, and verify them together, each its share of the files; None:
        this one does. They must call the methods that do in the same order.
        """
        self._folder = folder
        self._keep = keep
        self._channel = channel or Channel()
        self._verification = Verification(self._channel)
        self._damaged: set[int] = set()

    def path(self, step: int) -> str:
        """Returns the folder of a checkpoint."""
        return files.join(self._folder, f"step-{step:08d}")

    def _marker(self, step: int) -> str:
        return files.join(self.path(step), marker.NAME)

    def _all_steps(self) -> list[int]:
        return [int(match[1]) for match in map(_FOLDER_NAME.match, files.list_names(self._folder)) if match]

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints in ascending order, without those known to be damaged."""
        return sorted(
            step for step in set(self._all_steps()) - self._damaged if files.is_file(self._marker(step))
        )

    def latest(self) -> int:
        """Returns the step of the newest checkpoint that is complete and not damaged.

        Raises:
            UsageError: If there is none.
        """
        self.leave_out_damaged()
        steps = self.steps()
        if not steps:
            raise UsageError(f"{self._folder}: no complete checkpoint; train with `fit` first")
        return steps[-1]

    def leave_out_damaged(self, *, strict: bool = False) -> None:
        """Ignores damaged checkpoints from now on, and names them in the log. The next `write` removes them.

        Compares the checksums of the files of the newest whole checkpoint only, and the sizes of the others' files. All
        processes come to the same result.

        Raises:
            UsageError: If all checkpoints are damaged, or, with `strict`, one is, or one cannot be read.
        """
        damages: dict[int, str] = {}
        newest_whole = None
        removed = False  # by a `fit` that trains meanwhile
        for step in self._verification.agreed(self.steps()[::-1]):
            contents = newest_whole is None
            damage, exists = self._verification.damage(self.path(step), step, contents=contents)
            if damage is None:
                newest_whole = step if newest_whole is None else newest_whole
            elif not exists:
                removed = True
            elif strict:
                raise self._damaged_error(step, damage)
            else:
                damages[step] = damage
        if removed and newest_whole is None:
            self.leave_out_damaged(strict=strict)  # there are newer ones
            return
        if damages and newest_whole is None:
            step, damage = next(iter(damages.items()))
            raise UsageError(
                f"{self.path(step)}: damaged ({damage}), and no other checkpoint is whole; remove {self._folder} "
                "to train from the first step again"
            )
        for step, damage in damages.items():
            _log.warning(
                f"{self.path(step)}: damaged ({damage}): not used, and removed when the next checkpoint is written; "
                f"the newest that is whole is of step {newest_whole}"
            )
        self._damaged.update(damages)

    def check(self, step: int) -> None:
        """Checks the files of a complete checkpoint.

        Raises:
            UsageError: If one is damaged or cannot be read.
        """
        damage, _ = self._verification.damage(self.path(step), step, contents=True)
        if damage is not None:
            raise self._damaged_error(step, damage)

    def _damaged_error(self, step: int, damage: str) -> UsageError:
        return UsageError(
            f"{self.path(step)}: damaged ({damage}); remove this folder to use the checkpoint before it"
        )

    def best(self) -> int | None:
        """Returns the step of the checkpoint with the lowest validation loss; None if none was evaluated."""
        losses = [(self.metadata(step).get(_VALIDATION_LOSS), step) for step in self.steps()]
        return min(((loss, step) for loss, step in losses if loss is not None), default=(None, None))[1]

    def metadata(self, step: int) -> dict[str, Any]:
        """Returns the checkpoint's metadata from `write` and `record`.

        Raises:
            UsageError: If the file is damaged.
        """
        try:
            return self._read_marker(step).metadata
        except ValueError as error:
            raise self._damaged_error(step, f"{marker.NAME}: {error}") from error

    def _read_marker(self, step: int) -> Marker:
        """Raises ValueError if the file is damaged."""
        return Marker.parse(files.read_text(self._marker(step)), step=step)

    def checksum(self, step: int) -> int:
        """Returns the CRC-32C of a complete checkpoint's last file, and so of all that it contains."""
        return google_crc32c.value(files.read_text(self._marker(step)).encode())

    def write(self, step: int, parts: Parts, *, metadata: Mapping[str, Any]) -> None:
        """Writes a checkpoint after `step` updates, then removes old and unfinished ones.

        Each process calls this with its parts. If the checkpoint exists, adds only a validation loss in `metadata`: a
        run that continues may evaluate its weights first.

        Raises:
            OSError, tf.errors.OpError: In all processes, if one cannot write. The other checkpoints stay.
        """
        attempt, error = self._begin(step, metadata)
        if attempt == _EXISTS:
            if error is not None:
                raise error
            return
        written: list[files.FileInfo] = []
        try:
            if error is None:
                written = self._write_own(step, attempt, parts)
        except WriteErrors as own_error:
            error = own_error
        report = [astuple(info) for info in written] if error is None else str(error)
        reports = list(map(json.loads, self._channel.gather(json.dumps(report))))
        failure = next(
            (f"process {number}: {each}" for number, each in enumerate(reports) if isinstance(each, str)), ""
        )
        if reports:
            try:
                if not failure:
                    infos = {
                        f"{self._prefix(step, attempt, process)}-{number:05d}": files.FileInfo(*info)
                        for process, each in enumerate(reports)
                        for number, info in enumerate(each)
                    }
                    self._complete(step, infos, metadata)
            except WriteErrors as own_error:
                error, failure = own_error, f"process 0: {own_error}"
            if failure:
                try:
                    self._remove(step)  # frees the space
                except (
                    WriteErrors
                ) as own_error:  # the others wait for this process; the next write removes it
                    _log.warning(f"{self.path(step)}: cannot be removed ({own_error})")
        failure = self._channel.from_first(failure)
        if error is not None:
            raise error
        if failure:
            raise OSError(failure)
        if reports:
            self._prune()  # only now: the new checkpoint must stay if an old one cannot be removed

    def _begin(
        self, step: int, metadata: Mapping[str, Any]
    ) -> tuple[str, OSError | tf.errors.OpError | None]:
        """Makes room for a checkpoint in process 0; the others wait for it.

        Returns:
            A name of the attempt that no other has, or `_EXISTS` if the checkpoint does; and why there is no room.
        """
        if self._channel.index > 0:
            return self._channel.from_first(""), None
        attempt, error = secrets.token_hex(8), None
        try:
            complete = self.steps()
            if step in complete:
                attempt = _EXISTS
                if _VALIDATION_LOSS in metadata:
                    self.record(step, validation_loss=metadata[_VALIDATION_LOSS])
            else:
                for unusable in set(self._all_steps()) - set(complete):
                    self._remove(unusable)
                files.make_dirs(self.path(step))
        except WriteErrors as own_error:
            error = own_error
        return self._channel.from_first(attempt), error

    def _prefix(self, step: int, attempt: str, process: int) -> str:
        return files.join(self.path(step), f"{attempt}-{process:05d}")

    def _write_own(self, step: int, attempt: str, parts: Parts) -> list[files.FileInfo]:
        """Writes the parts of this process. Returns size and checksum of the data of each file."""
        prefixes = write_parts(self._prefix(step, attempt, self._channel.index), parts)
        paths = [f"{prefix}.data-00000-of-00001" for prefix in prefixes]
        files.flush(paths)
        names = [path.rpartition("/")[2] for path in paths]
        written = _listed(files.list_checksums, self.path(step), names)
        return [written[name] for name in names]

    def _complete(self, step: int, infos: Mapping[str, files.FileInfo], metadata: Mapping[str, Any]) -> None:
        """Joins the files that all processes have written, by prefix, to a checkpoint."""
        path = self.path(step)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=list(infos),
            destination_prefix=files.join(path, _STATE),
            delete_old_dirs=False,
        )
        index = f"{_STATE}.index"
        files.flush([files.join(path, index), path])
        expected = {
            f"{_STATE}.data-{number:05d}-of-{len(infos):05d}": info
            for number, info in enumerate(infos.values())
        } | _listed(files.list_checksums, path, [index])
        present = _listed(files.list_files, path, expected)
        for name, info in expected.items():
            if name not in present or present[name].size != info.size:
                raise OSError(f"{files.join(path, name)} is not as it was written")
        self._write_marker(step, Marker({"step": step, **metadata}, expected))

    def record(self, step: int, *, validation_loss: float) -> None:
        """Adds the validation loss to a checkpoint's metadata, if the checkpoint exists."""
        if step in self.steps():
            marker = self._read_marker(step)
            metadata = marker.metadata | {_VALIDATION_LOSS: validation_loss}
            self._write_marker(step, replace(marker, metadata=metadata))
            self._prune()

    def _write_marker(self, step: int, content: Marker) -> None:
        files.write_text(self._marker(step), content.to_text())

    def _prune(self) -> None:
        kept_steps = {self.best(), *self.steps()[-self._keep :]}
        for step in set(self.steps()) - kept_steps:
            self._remove(step)

    def _remove(self, step: int) -> None:
        # The marker first, so that a partly removed checkpoint counts as unfinished.
        if files.is_file(self._marker(step)):
            files.remove_file(self._marker(step))
        files.remove_tree(self.path(step))
        self._damaged.discard(step)

    def read(
        self, step: int, shapes: Mapping[str, Sequence[int]], *, resized: Sequence[str] = ()
    ) -> Iterator[tuple[str, np.ndarray | StoredArray]]:
        """Yields the (name, array) pairs of a checkpoint. Arguments and errors are those of `stored_arrays`."""
        return stored_arrays(files.join(self.path(step), _STATE), shapes, resized=resized)

    def restore(self, step: int, **state: Any) -> None:
        """Loads a checkpoint into `state`, which can be a subset of its parts.

        Raises:
            UsageError: As for `read`.
        """
        variables = named_variables(state)
        shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
        for name, value in self.read(step, shapes):
            variables[name].assign(value[...])


def _listed(
    listing: Callable[..., dict[str, files.FileInfo]], folder: str, names: Collection[str]
) -> dict[str, files.FileInfo]:
    """Returns files of a checkpoint that have just been written, by name, from a listing of files.py.

    Raises:
        OSError: If Cloud Storage does not list them. Like another failed write, it must not end training.
    """
    try:
        return listing(folder, names)
    except UsageError as error:
        raise OSError(str(error)) from error
