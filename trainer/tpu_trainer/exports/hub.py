"""Pushes a run's model to the Hugging Face Hub during and after training.

A failed push, such as for a wrong token or an exceeded quota, does not end training. The run folder keeps the model.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from threading import Lock, Thread

from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id

from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import UsageError

_log = logging.getLogger(__name__)


def check_model_id(model_id: str) -> None:
    """Raises UsageError if `model_id` is not a valid repository name."""
    try:
        validate_repo_id(model_id)
    except HFValidationError as error:
        raise UsageError(f"--hub_model_id is {model_id!r}: {error}") from error


class HubPusher:
    """Exports checkpoints of a run and uploads them to a repository, which it creates if necessary."""

    def __init__(self, model_id: str, *, private: bool, folder: RunFolder) -> None:
        """
        Args:
            model_id: The repository, as name or owner/name.
            private: Whether to create the repository as private.
            folder: The run folder.
        """
        self._model_id = model_id
        self._private = private
        self._folder = folder
        self._thread: Thread | None = None
        self._exporting = Lock()
        self._abandoned = False
        self._newest = 0  # the last step whose push was started

    def push_in_background(self, step: int) -> None:
        """Starts to push checkpoint `step`; skips it if a push is in progress."""
        if step == self._newest or (self._thread is not None and self._thread.is_alive()):
            return
        self._newest = step
        # A daemon, so that the process does not wait for an abandoned upload before it exits.
        self._thread = Thread(target=self._push, args=(step, "training continues"), name="hub", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits for a push in progress."""
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Waits only while a push in progress exports the model: TensorFlow must not run when the process exits."""
        with self._exporting:
            self._abandoned = True
            if self._thread is not None and self._thread.is_alive():
                _log.info(
                    f"fit: step {self._newest} was not pushed to {self._model_id}: the run is interrupted"
                )

    def finish(self, step: int) -> None:
        """Waits for a push in progress, then pushes checkpoint `step`, the run's last."""
        self.wait()
        self._push(step, f"the run is complete in {self._folder.path}; run the same command to push again")

    def _push(self, step: int, suffix: str) -> None:
        # Imported here, so that check_model_id does not import TensorFlow.
        from tpu_trainer.exports.checkpoint_export import export_checkpoint

        disable_progress_bars()  # the trainer shows its own
        api = HfApi()
        try:
            # First, because it fails fast.
            repository = api.create_repo(self._model_id, private=self._private, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
                with self._exporting:
                    if self._abandoned:
                        return
                    export_checkpoint(self._folder, step, Path(temporary))
                api.upload_folder(
                    repo_id=repository.repo_id, folder_path=temporary, commit_message=f"Step {step}"
                )
        except Exception as error:  # the client passes on exceptions of several libraries
            _log.warning(
                f"fit: step {step} was not pushed to {self._model_id} ({_first_line(error)}); {suffix}"
            )
        else:
            _log.info(f"fit: step {step} pushed to {repository}")


def _first_line(error: Exception) -> str:
    """Returns the type and first line of an error. The client's other lines are advice that does not apply here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
