"""Checkpoints that are complete or absent.

A checkpoint is a folder step-<step>; its complete.json, written last, makes it one. Without that file it is what an
interrupted run left behind: never read, and removed by the next save.
"""

from __future__ import annotations

import json
import re
from typing import Any

import tensorflow as tf

from tpu_trainer import files
from tpu_trainer.errors import UsageError

_FOLDER_NAME = re.compile(r"^step-(\d+)$")
_MARKER = "complete.json"


class Checkpoints:
    """The checkpoints of a run, in a folder (local or a URL)."""

    def __init__(self, folder: str, *, keep: int = 1) -> None:
        """
        Args:
            folder: Made at the first save.
            keep: Complete checkpoints kept, the newest.
        """
        self._folder = folder
        self._keep = keep

    def _path(self, step: int) -> str:
        return files.join(self._folder, f"step-{step:08d}")

    def _all_steps(self) -> list[int]:
        return [int(match[1]) for match in map(_FOLDER_NAME.match, files.list_names(self._folder)) if match]

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, rising."""
        return sorted(
            step for step in self._all_steps() if files.is_file(files.join(self._path(step), _MARKER))
        )

    def latest(self) -> int:
        """The newest complete checkpoint's step; UsageError where there is none."""
        steps = self.steps()
        if not steps:
            raise UsageError(f"{self._folder}: no complete checkpoint; has `fit` run with this folder?")
        return steps[-1]

    def metadata(self, step: int) -> dict[str, Any]:
        """What `save` was told of the checkpoint."""
        return json.loads(files.read_text(files.join(self._path(step), _MARKER)))

    def save(self, step: int, *, metadata: dict[str, Any], **trackables: tf.Module) -> None:
        """Writes the state of `trackables` after `step` updates, then removes what is too old or unfinished."""
        if step in self.steps():
            return
        complete = set(self.steps())
        for unfinished in set(self._all_steps()) - complete:
            files.remove_tree(self._path(unfinished))
        path = self._path(step)
        files.make_dirs(path)
        tf.train.Checkpoint(**trackables).write(files.join(path, "state"))
        files.write_text(files.join(path, _MARKER), json.dumps({"step": step} | metadata, indent=1) + "\n")
        for old in self.steps()[: -self._keep]:
            files.remove_file(
                files.join(self._path(old), _MARKER)
            )  # first: what remains is unfinished, not broken
            files.remove_tree(self._path(old))

    def restore(self, step: int, **trackables: tf.Module) -> None:
        """Reads a checkpoint back into `trackables`, which may be some of those it was saved with."""
        status = tf.train.Checkpoint(**trackables).read(files.join(self._path(step), "state"))
        status.expect_partial().assert_existing_objects_matched()
