"""Verb export: writes a run's checkpoint as a folder that Hugging Face's libraries load."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tpu_trainer import files
from tpu_trainer.config import ExportConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.exports.checkpoint_export import export_checkpoint
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder


def main(config: ExportConfig) -> None:
    """Runs the verb; UsageError where the run has no such checkpoint or the output folder holds something else."""
    folder = RunFolder(config.run)
    folder.config()
    names = files.list_names(config.output)
    if names and not {"config.json", "model.safetensors"} <= set(names):
        raise UsageError(
            f"--output is {config.output!r}: it holds {names[0]!r} and no exported model; give a new or an empty folder"
        )
    step = chosen_step(Checkpoints(folder.checkpoints), config.checkpoint)
    with tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary:
        export_checkpoint(folder, step, Path(temporary))
        files.copy_tree(temporary, config.output)
    print(f"{config.output}: the model after {step} steps")


def chosen_step(checkpoints: Checkpoints, choice: str) -> int:
    """The step that `choice`, latest, best or a number, names; UsageError where there is no such checkpoint."""
    if choice == "latest":
        return checkpoints.latest()
    if choice == "best":
        best = checkpoints.best()
        if best is None:
            raise UsageError(
                "--checkpoint is 'best', but no checkpoint of the run has a validation loss; use 'latest' or a step"
            )
        return best
    steps = checkpoints.steps()
    if int(choice) not in steps:
        raise UsageError(
            f"--checkpoint is {choice}, but the run has checkpoints of the steps {', '.join(map(str, steps)) or 'none'}"
        )
    return int(choice)
