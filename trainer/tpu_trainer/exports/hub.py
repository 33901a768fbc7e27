"""Pushing a run's model to the Hugging Face Hub while it trains, and when it has trained.

The Hub may be out of reach, the token wrong, the quota used up: training never ends for that, and what was not pushed
is in the run's folder still.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Thread

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from tpu_trainer.errors import UsageError
from tpu_trainer.runs.run_folder import RunFolder


def check_model_id(model_id: str) -> None:
    """UsageError where the Hub would refuse `model_id` as a name."""
    try:
        validate_repo_id(model_id)
    except HFValidationError as error:
        raise UsageError(f"--hub_model_id is {model_id!r}: {error}") from error


class HubPusher:
    """Exports checkpoints of a run and uploads them to a repository, which is made where it is missing."""

    def __init__(self, model_id: str, *, private: bool, folder: RunFolder) -> None:
        """
        Args:
            model_id: The repository: name, or owner/name.
            private: Whether a repository that is made is private.
            folder: The run's.
        """
        self._model_id = model_id
        self._private = private
        self._folder = folder
        self._thread: Thread | None = None
        self._newest = 0  # the last step that was taken up

    def push_in_background(self, step: int) -> None:
        """Starts to push checkpoint `step`, unless an earlier one is on its way: then a later one will follow it."""
        if step == self._newest or (self._thread is not None and self._thread.is_alive()):
            return
        self._newest = step
        self._thread = Thread(target=self._push, args=(step, "training goes on"), name="hub")
        self._thread.start()

    def finish(self, step: int) -> None:
        """Waits for a push that is under way, then pushes checkpoint `step`, the run's last."""
        if self._thread is not None:
            self._thread.join()
        self._push(step, f"the run is complete in {self._folder.path}; the same command pushes again")

    def _push(self, step: int, consolation: str) -> None:
        # Here, not above: a check of the name need not wait for TensorFlow.
        from tpu_trainer.exports.checkpoint_export import export_checkpoint
        from tpu_trainer.runs.metrics import say

        disable_progress_bars()  # ours is on the same terminal
        api = HfApi()
        try:
            # First, for it is quick to fail.
            repository = api.create_repo(self._model_id, private=self._private, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
                export_checkpoint(self._folder, step, Path(temporary))
                api.upload_folder(
                    repo_id=repository.repo_id, folder_path=temporary, commit_message=f"Step {step}"
                )
        except Exception as error:  # the client passes on those of several libraries
            say(f"fit: step {step} was not pushed to {self._model_id} ({_first_line(error)}); {consolation}")
        else:
            say(f"fit: step {step} pushed to {repository}")


def _first_line(error: Exception) -> str:
    """What the client says at length, with advice that does not help here, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
