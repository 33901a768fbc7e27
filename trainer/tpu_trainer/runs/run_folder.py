"""The folder of a run: what `fit` writes there and the other verbs read.

config.yaml      the whole configuration
tokenizer/       a copy, so that the run needs nothing else
data.json        what is learnt from, and evaluated on
metrics.jsonl    a line per logged step
checkpoints/     see checkpoint.py
tensorboard/     the same figures, and profiles
loss.svg         the same figures as a picture
failure.json     where training came to an end with a loss that is not finite: the step and its records
summary.json     written last, when training has ended
launch/          how the containers ended that `launch` started: there before the run is
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tpu_trainer import files
from tpu_trainer.config import FitConfig
from tpu_trainer.config_files import dump_fit_config, load_fit_config
from tpu_trainer.errors import UsageError

LAUNCH_FOLDER = "launch"

# These may change when a run is continued: they decide where and how far it runs, not what a step does.
_FREE = {
    "": ("output_dir", "strategy", "tpu", "hub_model_id", "hub_private"),
    "data": ("train", "validation", "tokenizer", "fingerprint"),
    "train": (
        "steps",
        "steps_per_execution",
        "evaluation_batch_size",
        "log_every",
        "evaluate_every",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "deterministic",
        "tensorboard",
    ),
    "profile": ("steps",),
}


def _deciding(config: FitConfig) -> dict[str, Any]:
    """`--name: value` of every option that decides what the run's steps do."""
    found = {}
    for name, value in dataclasses.asdict(config).items():
        if name in _FREE[""]:
            continue
        if isinstance(value, dict):
            found |= {
                f"--{name}.{key}": item for key, item in value.items() if key not in _FREE.get(name, ())
            }
        else:
            found[f"--{name}"] = value
    return found


class RunFolder:
    """The files of a run, by their purpose."""

    def __init__(self, path: str, *, writable: bool = True) -> None:
        """
        Args:
            path: The folder, local or a URL.
            writable: Whether this process writes to it: of several that train together, only one does.
        """
        self.path = path
        self.writable = writable
        self.checkpoints = files.join(path, "checkpoints")
        self.tokenizer = files.join(path, "tokenizer")
        self._config = files.join(path, "config.yaml")
        self._data = files.join(path, "data.json")
        self.metrics_log = files.join(path, "metrics.jsonl")
        self.tensorboard = files.join(path, "tensorboard")
        self.loss_picture = files.join(path, "loss.svg")
        self.failure = files.join(path, "failure.json")
        self._summary = files.join(path, "summary.json")

    def config(self) -> FitConfig:
        """The run's configuration; UsageError where the folder holds no run."""
        if not files.is_file(self._config):
            raise UsageError(f"{self.path}: no config.yaml there; give a folder that `fit` has written")
        return load_fit_config(self._config)

    def check_continues(self, config: FitConfig) -> None:
        """UsageError where the folder holds something that a run of `config` would not continue."""
        names = [name for name in files.list_names(self.path) if name != LAUNCH_FOLDER]
        if not names:
            return
        if not files.is_file(self._config):
            raise UsageError(
                f"--output_dir is {self.path!r}: it holds {names[0]!r} and no run; give a new or an empty folder"
            )
        old, new = _deciding(self.config()), _deciding(config)
        changed = [f"{name} was {old[name]!r} and is {new[name]!r}" for name in new if old[name] != new[name]]
        if changed:
            raise UsageError(
                f"--output_dir is {self.path!r}: the run there has other options ({'; '.join(changed)}); "
                "use those, or another folder"
            )

    def start(self, config: FitConfig, tokenizer: str) -> None:
        """Writes what a run has from its beginning."""
        if not self.writable:
            return
        files.make_dirs(self.path)
        files.write_text(self._config, dump_fit_config(config))
        files.copy_tree(tokenizer, self.tokenizer)

    def write_data(self, entries: list[dict[str, Any]]) -> None:
        """Writes data.json: an entry for each split, as mixture.describe gives it."""
        if not self.writable:
            return
        files.write_text(self._data, json.dumps(entries, indent=1) + "\n")

    def data(self) -> list[dict[str, Any]]:
        """The entries of data.json."""
        return json.loads(files.read_text(self._data)) if files.is_file(self._data) else []

    def figures_at(self, step: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The last training figures up to `step`, and the evaluation of that very step; None where there is none."""
        records = self.metrics()
        training = [record for record in records if "loss" in record and record["step"] <= step]
        evaluations = [record["eval"] for record in records if "eval" in record and record["step"] == step]
        return training[-1] if training else None, evaluations[-1] if evaluations else None

    def summary(self) -> dict[str, Any] | None:
        """What training ended with; None where it has not."""
        return json.loads(files.read_text(self._summary)) if files.is_file(self._summary) else None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Writes summary.json."""
        if self.writable:
            files.write_text(self._summary, json.dumps(summary, indent=1) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        if not files.is_file(self.metrics_log):
            return []
        # A killed process may leave half a line at the end.
        lines = files.read_text(self.metrics_log).split("\n")[:-1]
        return [json.loads(line) for line in lines]
