"""The export verb: writes a checkpoint as a Hugging Face model folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tokenmill_reader.console.elapsed import elapsed
from tokenmill_reader.console.streams import json_line, print_data
from tpu_trainer.config import ExportConfig
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support import files, quiet
from tpu_trainer.support.errors import UsageError


def main(config: ExportConfig) -> None:
    """Runs the verb.

    Raises:
        UsageError: If the run lacks the checkpoint, or the output folder contains something else.
    """
    folder = RunFolder(config.run)
    folder.config()
    names = files.list_names(config.output)
    if names and not ("config.json" in names and any(map(_is_weights, names))):
        raise UsageError(
            f"--output is {config.output!r}: it contains {names[0]!r} but no exported model; use a new or empty folder"
        )
    # TensorFlow takes seconds to import: the checks above come first.
    with elapsed("export: starting TensorFlow"):
        from tpu_trainer.exports.checkpoint_export import export_checkpoint
        from tpu_trainer.runs.checkpoint import Checkpoints
        from tpu_trainer.runs.chosen_step import chosen_step

        quiet.silence_abseil()
    step = chosen_step(Checkpoints(folder.checkpoints), config.checkpoint)
    with (
        elapsed("export: writing the model"),
        tempfile.TemporaryDirectory(prefix="tpu_trainer-") as temporary,
    ):
        export_checkpoint(folder, step, Path(temporary))
        for name in filter(_is_weights, names):  # an older export may have more parts
            files.remove_file(files.join(config.output, name))
        files.copy_tree(temporary, config.output)
    if config.json:
        print_data(json_line({"output": config.output, "step": step}))
    else:
        print(f"{config.output}: the model after {step} steps")


def _is_weights(name: str) -> bool:
    return name.startswith("model") and name.endswith((".safetensors", ".safetensors.index.json"))
