"""The files in a run's folder, written by `fit` and read by the other verbs.

config.yaml      the whole configuration
tokenizer/       a copy
data.json        the training and validation splits
metrics.jsonl    a line per logged step
evaluations.jsonl  a line per `evaluate --tasks`; see evaluations.py
checkpoints/     see checkpoint.py
tensorboard/     the same figures, and profiles
loss.svg         a chart of the losses
trackers.json    with --track: the id of the run's records, and the trackers that have one
failure.json     written if the loss or gradient is not finite: the step and its records
summary.json     written last, when training has ended
launch/          how the containers of `launch` ended; may exist before the run does
run.lock         while a `fit` writes there, or after one was killed; see run_lock.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tpu_trainer.config import FitConfig
from tpu_trainer.config.files import dump_fit_config, load_fit_config, option_values
from tpu_trainer.runs import run_lock
from tpu_trainer.runs.time_spent import SPENT
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

LAUNCH_FOLDER = "launch"
_BEFORE_A_RUN = (LAUNCH_FOLDER, run_lock.NAME, "config.yaml.tmp")
"""Files that exist before a run does: the last is of a process that was killed while it wrote config.yaml."""

# These can change when a run continues: they do not affect what a step computes.
_CHANGEABLE = {
    *("--output_dir", "--strategy", "--hub_model_id", "--hub_private", "--strict", "--track"),
    *("--data.train", "--data.stages", "--data.validation", "--data.choices", "--data.tokenizer"),
    *("--data.fingerprint", "--profile.steps", "--train.steps", "--train.steps_per_execution"),
    *("--train.evaluation_batch_size", "--train.log_every", "--train.evaluate_every"),
    *("--train.checkpoint_every", "--train.checkpoint_minutes", "--train.keep_checkpoints"),
    *("--train.deterministic", "--train.tensorboard"),
}


def _fixed_options(config: FitConfig) -> dict[str, Any]:
    """Returns --name → value of the options that affect the steps."""
    return {
        name: value
        for name, value in option_values(config).items()
        if name not in _CHANGEABLE and not name.startswith(("--mesh.", "--tpu."))
    }


class RunFolder:
    """The paths of a run's files, and access to them."""

    def __init__(self, path: str, *, writable: bool = True) -> None:
        """
        Args:
            path: The folder, local or a URL.
            writable: Whether this process writes to it. If several train together, only one does.
        """
        self.path = path
        self.writable = writable
        self.checkpoints = files.join(path, "checkpoints")
        self.tokenizer = files.join(path, "tokenizer")
        self._config = files.join(path, "config.yaml")
        self._data = files.join(path, "data.json")
        self.metrics_log = files.join(path, "metrics.jsonl")
        self.evaluations_log = files.join(path, "evaluations.jsonl")
        self.tensorboard = files.join(path, "tensorboard")
        self.loss_picture = files.join(path, "loss.svg")
        self.failure = files.join(path, "failure.json")
        self._summary = files.join(path, "summary.json")
        self._trackers = files.join(path, "trackers.json")

    def config(self) -> FitConfig:
        """Reads the run's configuration.

        Raises:
            UsageError: If the folder has no run.
        """
        if not files.is_file(self._config):
            raise UsageError(f"{self.path}: no config.yaml there; use a folder that `fit` has written")
        return load_fit_config(self._config)

    def check_continues(self, config: FitConfig) -> FitConfig | None:
        """Checks that the folder is empty or has a run that `config` can continue.

        Returns:
            The run's configuration until now; None for a new run.

        Raises:
            UsageError: If it does not.
        """
        names = [name for name in files.list_names(self.path) if name not in _BEFORE_A_RUN]
        if not names:
            return None
        if not files.is_file(self._config):
            raise UsageError(
                f"--output_dir is {self.path!r}: it contains {names[0]!r} but no run; use a new or empty folder"
            )
        earlier = self.config()
        old_options, new_options = _fixed_options(earlier), _fixed_options(config)
        changed = [
            f"{name} was {old_options[name]!r} and is {new_options[name]!r}"
            for name in new_options
            if old_options[name] != new_options[name]
        ]
        if changed:
            raise UsageError(
                f"--output_dir is {self.path!r}: the run there has other options ({'; '.join(changed)}); "
                "use its options or another folder"
            )
        return earlier

    def start(self, config: FitConfig, tokenizer: str, *, continues: bool = False) -> None:
        """Writes the configuration and the tokenizer.

        Raises:
            UsageError: If the run `continues` and has another tokenizer. A dataset with a manifest has only one.
        """
        if not self.writable:
            return
        run_tokenizer, new_tokenizer = (
            _content(files.join(path, "tokenizer.json")) for path in (self.tokenizer, tokenizer)
        )
        special, now_special = (_special_tokens(path) for path in (self.tokenizer, tokenizer))
        changed = any(special[name] != now_special[name] for name in special.keys() & now_special.keys())
        if continues and (changed or (run_tokenizer is not None and run_tokenizer != new_tokenizer)):
            raise UsageError(
                f"{tokenizer}: not the tokenizer that the run in {self.path} was trained with; use that one, or "
                "another --output_dir"
            )
        files.make_dirs(self.path)
        files.write_text(self._config, dump_fit_config(config))
        files.copy_tree(tokenizer, self.tokenizer)

    def write_data(self, entries: list[dict[str, Any]]) -> None:
        """Writes data.json: an entry per split, from mixture.describe."""
        if not self.writable:
            return
        files.write_text(self._data, json.dumps(entries, indent=1) + "\n")

    def data(self) -> list[dict[str, Any]]:
        """Reads the entries of data.json; empty if there is none.

        Raises:
            UsageError: If the file is damaged.
        """
        if not files.is_file(self._data):
            return []
        return _parse(
            files.read_bytes(self._data),
            place=self._data,
            valid=lambda value: isinstance(value, list) and all(map(_is_data_entry, value)),
            remedy="remove it; `fit` writes it again when the run continues",
        )

    def figures_at(self, step: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Returns the last training figures up to `step` and the evaluation of `step`; None for missing ones.

        Raises:
            UsageError: If metrics.jsonl is damaged.
        """
        records = self.metrics()
        training = [record for record in records if "loss" in record and record["step"] <= step]
        evaluations = [record["eval"] for record in records if "eval" in record and record["step"] == step]
        return training[-1] if training else None, evaluations[-1] if evaluations else None

    def summary(self) -> dict[str, Any] | None:
        """Reads summary.json; None before the end of training.

        Raises:
            UsageError: If the file is damaged.
        """
        if not files.is_file(self._summary):
            return None
        return _parse(
            files.read_bytes(self._summary),
            place=self._summary,
            valid=lambda value: (
                isinstance(value, dict)
                and isinstance(value.get("data"), str)
                and _is_step(value.get("steps"))
            ),
            remedy="remove it; the same `fit` command writes it again",
        )

    def write_summary(self, summary: dict[str, Any]) -> None:
        if self.writable:
            files.write_text(self._summary, json.dumps(summary, indent=1) + "\n")

    def trackers(self) -> dict[str, Any] | None:
        """Reads trackers.json; None if there is none.

        Raises:
            UsageError: If the file is damaged.
        """
        if not files.is_file(self._trackers):
            return None
        return _parse(
            files.read_bytes(self._trackers),
            place=self._trackers,
            valid=lambda value: (
                isinstance(value, dict)
                and re.fullmatch(r"[\w-]+", str(value.get("id"))) is not None
                and isinstance(value.get("trackers"), list)
            ),
            remedy="remove it; the trackers then begin new records",
        )

    def write_trackers(self, content: dict[str, Any]) -> None:
        """Writes trackers.json: `id`, and the names of the `trackers`."""
        files.write_text(self._trackers, json.dumps(content) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Reads the records of metrics.jsonl.

        Raises:
            UsageError: If a line is damaged.
        """
        return _records(self.metrics_log, _is_metrics)

    def evaluations(self) -> list[dict[str, Any]]:
        """Reads the records of evaluations.jsonl.

        Raises:
            UsageError: If a line is damaged.
        """
        return _records(self.evaluations_log, _is_evaluation)


def _records(path: str, valid: Callable[[Any], bool]) -> list[dict[str, Any]]:
    if not files.is_file(path):
        return []
    # A killed process may leave an incomplete last line.
    lines = files.read_bytes(path).split(b"\n")[:-1]
    remedy = "remove this line to continue without its figures"
    return [
        _parse(line, place=f"{path}, line {number}", valid=valid, remedy=remedy)
        for number, line in enumerate(lines, 1)
    ]


def _is_data_entry(entry: Any) -> bool:
    """Whether a value is an entry of data.json, which mixture.describe makes."""
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in ("name", "use", "fingerprint"))
        and all(_is_step(entry.get(name)) for name in ("rows", "max_length"))
        and (entry.get("share") is None or _is_number(entry["share"]))
    )


def _is_metrics(record: Any) -> bool:
    """Whether a value is a line of metrics.jsonl: a step with a loss, an evaluation, or neither."""
    if not isinstance(record, dict) or not _is_step(record.get("step")):
        return False
    if not all(_is_number(record.get(name, 0.0)) for name in ("loss", "tokens", "flops")):
        return False
    spent, evaluation = record.get(SPENT, {}), record.get("eval", {"loss": 0.0})
    if not (isinstance(spent, dict) and all(map(_is_number, spent.values()))):
        return False
    splits = evaluation.get("splits", {"": evaluation}) if isinstance(evaluation, dict) else None
    return isinstance(splits, dict) and all(
        isinstance(figures, dict) and _is_number(figures.get("loss"))
        for figures in (evaluation, *splits.values())
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold, or not finite."""
    return type(value) is float or (type(value) is int and abs(value) < 10**300)


def _is_evaluation(record: Any) -> bool:
    """Whether a value is a line of evaluations.jsonl: a step and settings, with numbers for each task."""
    if not isinstance(record, dict) or not _is_step(record.get("step")):
        return False
    if not {"shots", "limit", "harness", "precision"} <= record.keys():
        return False
    tasks = record.get("tasks")
    return isinstance(tasks, dict) and all(
        isinstance(figures, dict) and all(map(_is_number, figures.values())) for figures in tasks.values()
    )


def _content(path: str) -> bytes | None:
    return files.read_bytes(path) if files.is_file(path) else None


def _special_tokens(tokenizer: str) -> dict[str, Any]:
    """Returns name → text of the special tokens, such as mask_token, that a tokenizer's folder names.

    No checksum of a dataset has them, but a run with another mask token would learn another task.
    """
    path = files.join(tokenizer, "tokenizer_config.json")
    data = _content(path)
    if data is None:
        return {}
    values = _parse(data, place=path, valid=lambda value: isinstance(value, dict), remedy="copy it again")
    return {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in values.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }


def _is_step(value: Any) -> bool:
    return type(value) is int


def _parse(data: bytes, *, place: str, valid: Callable[[Any], bool], remedy: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
        UsageError: If it is not JSON, or not `valid`.
    """
    problem = "not what this program writes there"
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
        problem = str(error)
    else:
        if valid(value):
            return value
    raise UsageError(f"{place}: damaged ({problem}); {remedy}")
