"""Verb fit: checks everything that can be checked, then trains, or continues, a run."""

from __future__ import annotations

import sys

from tpu_trainer.config import FitConfig
from tpu_trainer.dataset import Split, open_split
from tpu_trainer.errors import UsageError
from tpu_trainer.run_folder import RunFolder


def main(config: FitConfig) -> None:
    """Runs the verb; UsageError where options, data and output folder do not fit together."""
    folder = RunFolder(config.output_dir)
    folder.check_continues(config)
    train = open_split(config.data.train, tokenizer=config.data.tokenizer)
    validation = None
    if config.data.validation is not None:
        validation = open_split(config.data.validation, tokenizer=train.tokenizer_path)
        _check_fit_together(train, validation)
    summary = folder.summary()
    if summary is not None:
        if summary["data"] != train.fingerprint:
            raise UsageError(
                f"--output_dir is {folder.path!r}: the run there was trained on other data than {train.path}; "
                "use another folder"
            )
        if summary["steps"] >= config.train.steps:
            print(
                f"{folder.path}: finished already, with {summary['steps']} steps; nothing to do",
                file=sys.stderr,
            )
            return
    # TensorFlow takes seconds to import: not for what the checks above refuse.
    from tpu_trainer.training import train_run

    train_run(config, folder=folder, train=train, validation=validation)


def _check_fit_together(train: Split, validation: Split) -> None:
    if validation.max_length != train.max_length:
        raise UsageError(
            f"{validation.path}: rows of {validation.max_length} tokens, but {train.path} has rows of "
            f"{train.max_length}; prepare both with the same --max_length"
        )
    if train.manifest and validation.manifest:
        ours, theirs = (split.manifest["tokenizer"]["sha256"] for split in (train, validation))
        if ours != theirs:
            raise UsageError(
                f"{validation.path}: made with another tokenizer than {train.path}; prepare both with the same one"
            )
