"""Checkpoints that are complete or absent.

A checkpoint is a folder step-<step> with a complete.json, which is written last. Without that file it is unfinished: it
is never read, and the next save removes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Thread
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tpu_trainer import files
from tpu_trainer.errors import UsageError

_FOLDER_NAME = re.compile(r"^step-(\d+)$")
_MARKER = "complete.json"
_VALIDATION_LOSS = "validation_loss"

# Name of a part of the checkpoint → model, optimizer or variable.
State = Mapping[str, "keras.Model | keras.optimizers.Optimizer | tf.Variable"]
WriteErrors = (OSError, tf.errors.OpError)
"""Exceptions caused by a full disk, a lost network or missing permissions."""


def named_variables(state: State) -> dict[str, tf.Variable]:
    """Returns name in checkpoints → variable. The names do not depend on other models in this process."""
    models = {value.name for value in state.values() if isinstance(value, keras.Model)}
    found: dict[str, tf.Variable] = {}
    for part, value in state.items():
        for variable in [value] if isinstance(value, tf.Variable) else value.variables:
            # Keras numbers the models of a process: tf_roberta_for_masked_lm_1/roberta/…
            words = [word for word in variable.name.split(":")[0].split("/") if word not in models]
            name = "/".join([part, *words])
            if name in found:
                raise ValueError(f"two variables of the state are named {name!r}")
            found[name] = variable
    return found


def snapshot(state: State) -> dict[str, np.ndarray]:
    """Copies the values of `state` to the host's memory; returns them by name in checkpoints."""
    return {name: variable.numpy() for name, variable in named_variables(state).items()}


class Checkpoints:
    """The checkpoints of a run, in a folder (local or a URL)."""

    def __init__(self, folder: str, *, keep: int = 1) -> None:
        """Keeps the `keep` newest checkpoints, and the one with the lowest validation loss."""
        self._folder = folder
        self._keep = keep

    def path(self, step: int) -> str:
        """Returns the folder of a checkpoint."""
        return files.join(self._folder, f"step-{step:08d}")

    def _marker(self, step: int) -> str:
        return files.join(self.path(step), _MARKER)

    def _all_steps(self) -> list[int]:
        return [int(match[1]) for match in map(_FOLDER_NAME.match, files.list_names(self._folder)) if match]

    def steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints in ascending order."""
        return sorted(step for step in self._all_steps() if files.is_file(self._marker(step)))

    def latest(self) -> int:
        """Returns the step of the newest complete checkpoint.

        Raises:
            UsageError: If there is none.
        """
        steps = self.steps()
        if not steps:
            raise UsageError(f"{self._folder}: no complete checkpoint; train with `fit` first")
        return steps[-1]

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
            found = json.loads(files.read_text(self._marker(step)))
            if isinstance(found, dict) and found.get("step") == step:
                return found
            problem = f"it is not of step {step}"
        except ValueError as error:  # not JSON, or not UTF-8
            problem = str(error)
        raise self._unreadable(self._marker(step), step, problem)

    def _unreadable(self, path: str, step: int, problem: str) -> UsageError:
        return UsageError(
            f"{path}: cannot be read ({problem}); if it is damaged, remove {self.path(step)} to use the previous "
            "checkpoint"
        )

    def write(self, step: int, values: Mapping[str, np.ndarray], *, metadata: Mapping[str, Any]) -> None:
        """Writes a checkpoint after `step` updates, then removes old and unfinished ones.

        Raises:
            OSError, tf.errors.OpError: If it cannot be written. The other checkpoints stay.
        """
        complete = self.steps()
        if step in complete:
            return
        for unfinished in set(self._all_steps()) - set(complete):
            files.remove_tree(self.path(unfinished))
        path = self.path(step)
        try:
            files.make_dirs(path)
            tf.raw_ops.SaveV2(
                prefix=files.join(path, "state"),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
            files.flush_tree(path)
            self._write_marker(step, {"step": step, **metadata})
        except WriteErrors:
            files.remove_tree(path)  # frees the space
            raise
        self._prune()

    def record(self, step: int, *, validation_loss: float) -> None:
        """Adds the validation loss to a checkpoint's metadata, if the checkpoint exists."""
        if step in self.steps():
            self._write_marker(step, self.metadata(step) | {_VALIDATION_LOSS: validation_loss})
            self._prune()

    def _write_marker(self, step: int, metadata: Mapping[str, Any]) -> None:
        files.write_text(self._marker(step), json.dumps(metadata, indent=1) + "\n")

    def _prune(self) -> None:
        kept = {self.best(), *self.steps()[-self._keep :]}
        for old in set(self.steps()) - kept:
            files.remove_file(
                self._marker(old)
            )  # first, so that a partly removed checkpoint counts as unfinished
            files.remove_tree(self.path(old))

    def read(self, step: int, shapes: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the (name, array) pairs of a checkpoint.

        Args:
            step: The checkpoint.
            shapes: Name → shape of each array to read; can be a subset of the checkpoint.

        Raises:
            UsageError: If an array is missing or has another shape, or the checkpoint cannot be read.
        """
        prefix = files.join(self.path(step), "state")
        try:
            reader = tf.train.load_checkpoint(prefix)
            found = reader.get_variable_to_shape_map()
            for name, shape in shapes.items():
                if found.get(name) != list(shape):
                    raise UsageError(
                        f"{prefix}: {name!r} has shape {found.get(name)} there and {list(shape)} here: the "
                        "checkpoint is from another model"
                    )
                yield name, reader.get_tensor(name)
        except tf.errors.OpError as error:
            raise self._unreadable(prefix, step, error.message) from error

    def restore(self, step: int, **state: Any) -> None:
        """Loads a checkpoint into `state`, which can be a subset of its parts.

        Raises:
            UsageError: As for `read`.
        """
        variables = named_variables(state)
        shapes = {name: variable.shape.as_list() for name, variable in variables.items()}
        for name, value in self.read(step, shapes):
            variables[name].assign(value)


class BackgroundSaver:
    """Writes checkpoints in the background, one at a time. Reports write errors instead of raising them."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        report: Callable[[int, str], None],
        saved: Callable[[int], None] | None = None,
    ) -> None:
        """
        Args:
            checkpoints: The run's.
            report: Called in the saving thread with step and error message after a failed save.
            saved: Called in the saving thread with the step of a complete checkpoint.
        """
        self._checkpoints = checkpoints
        self._report = report
        self._saved = saved
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self.failed = False
        """Whether the last finished save failed."""

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, step: int, state: Callable[[], Mapping[str, np.ndarray]], *, metadata: Mapping[str, Any]
    ) -> None:
        """Waits for the previous save, then starts to write a checkpoint.

        Args:
            step: Updates made.
            state: Copies the state to the host's memory; called in this thread.
            metadata: For `Checkpoints.write`.
        """
        self.wait()
        # Not a daemon, so that the process finishes the save before it exits.
        self._thread = Thread(target=self._write, args=(step, state(), metadata), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Waits for the current save, then does what `check` does."""
        if self._thread is not None:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises, once, an error that has ended a save and is no write error."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, step: int, values: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
        try:
            self._checkpoints.write(step, values, metadata=metadata)
            self.failed = False
        except WriteErrors as error:
            self.failed = True
            self._report(step, str(error))
        except Exception as error:  # raised in the training thread
            self.failed = True
            self._error = error
        else:
            if self._saved is not None:
                self._saved(step)
