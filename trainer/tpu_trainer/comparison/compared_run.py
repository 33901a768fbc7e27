"""What a comparison reads of a run's folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill_reader.files import normal_folder
from tpu_trainer.config.files import option_values
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import SPENT
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

TRAINING = ""
"""Stands for training where splits have names."""
VALIDATION = "validation"
"""The name of the validation split of a run whose splits have no names."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run, finished or not."""

    name: str
    options: Mapping[str, Any]
    """--name → value."""
    data: Sequence[Mapping[str, Any]]
    """The entries of data.json."""
    records: Sequence[Mapping[str, Any]]
    """Lines of metrics.jsonl."""
    parameters: int | None
    """Parameters of the model; None before the run's end."""
    tokenizer: str | None
    """SHA-256 of tokenizer.json."""
    scores: Mapping[str, Mapping[str, float]]
    """Task → metric → value, of the newest evaluation of each task."""

    @property
    def training(self) -> list[Mapping[str, Any]]:
        """The records with training figures."""
        return [record for record in self.records if "loss" in record]

    @property
    def step(self) -> int:
        """The last step with a record; 0 for a run without."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def splits(self) -> list[str]:
        """The names of the validation splits with figures, in their order."""
        return list(dict.fromkeys(name for _, figures in self._evaluations() for name in figures))

    @property
    def spent(self) -> Mapping[str, float]:
        """Kind → seconds of all processes until the last record; empty for a run without records."""
        return next((record[SPENT] for record in reversed(self.records) if SPENT in record), {})

    def curve(self, split: str, figure: str = "loss") -> list[tuple[int, float]]:
        """Returns the finite values of a figure, with their steps, in training or of a validation split."""
        if split == TRAINING:
            points = [(record["step"], record.get(figure)) for record in self.training]
        else:
            points = [
                (step, figures[split].get(figure))
                for step, figures in self._evaluations()
                if split in figures
            ]
        return [(step, value) for step, value in points if value is not None and math.isfinite(value)]

    def until(self, steps: Sequence[float], unit: str) -> np.ndarray | None:
        """Returns the tokens or FLOPs until each step, float64[steps]; None if no record has them.

        They are those of the records, and linear between two of them.
        """
        if unit == "step":
            return np.asarray(steps, np.float64)
        known = [(record["step"], record[unit]) for record in self.training if unit in record]
        if not known:
            return None
        return np.interp(steps, *zip((0, 0.0), *known, strict=True))

    def total(self, unit: str) -> float | None:
        """Returns the tokens or FLOPs until the last step; None if no record has them."""
        amounts = self.until([self.step], unit)
        return None if amounts is None else float(amounts[0])

    def last(self, split: str, figure: str) -> float | None:
        """Returns the last value of a figure in training or of a validation split."""
        curve = self.curve(split, figure)
        return curve[-1][1] if curve else None

    def typical(self, figure: str) -> float | None:
        """Returns the median of a training figure."""
        values = [value for _, value in self.curve(TRAINING, figure)]
        return float(np.median(values)) if values else None

    def _evaluations(self) -> list[tuple[int, Mapping[str, Mapping[str, float]]]]:
        """Returns (step, name of the split → its figures)."""
        return [
            (record["step"], record["eval"].get("splits", {VALIDATION: record["eval"]}))
            for record in self.records
            if "eval" in record
        ]


def open_runs(paths: Sequence[str]) -> list[ComparedRun]:
    """Reads the runs, and gives each the shortest name by which they differ: the last components of its path.

    Raises:
        UsageError: If a folder has no run, a damaged one, or is given twice.
    """
    clean = [normal_folder(path) for path in paths]
    for number, path in enumerate(clean):
        if path in clean[:number]:
            raise UsageError(f"{paths[number]}: given twice; compare different runs")
    return [_open(path, name) for path, name in zip(clean, _names(clean), strict=True)]


def _names(paths: Sequence[str]) -> list[str]:
    parts = [path.split("/") for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def _open(path: str, name: str) -> ComparedRun:
    folder = RunFolder(path, writable=False)
    config = folder.config()
    tokenizer = files.join(folder.tokenizer, "tokenizer.json")
    summary, records = folder.summary() or {}, folder.metrics()
    return ComparedRun(
        name=name,
        options=option_values(config),
        data=folder.data(),
        records=records,
        parameters=summary.get("parameters"),
        tokenizer=hashlib.sha256(files.read_bytes(tokenizer)).hexdigest()
        if files.is_file(tokenizer)
        else None,
        scores=_scores(records, folder.evaluations()),
    )


def _scores(
    records: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, float]]:
    """Returns the scores of the multiple-choice items in the last evaluation, and the newest ones of each task.

    The name of a task has its settings, so that only scores of the same ones are compared.
    """
    last_step = records[-1]["step"] if records else None
    choices = [record["eval"]["choices"] for record in records if "choices" in record.get("eval", {})]
    scores = dict(choices[-1]) if choices else {}
    for evaluation in evaluations:
        settings = [
            f"{evaluation[name]} {unit}"
            for name, unit in (("shots", "shots"), ("limit", "items"))
            if evaluation[name] is not None
        ]
        settings += [evaluation["precision"]] if evaluation["precision"] != "float32" else []
        settings += [f"step {evaluation['step']:,}"] if evaluation["step"] != last_step else []
        for task, figures in evaluation["tasks"].items():
            scores[f"{task} ({', '.join(settings)})" if settings else task] = figures
    return scores
