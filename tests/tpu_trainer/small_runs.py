"""Command lines of small runs, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.runs.checkpoint import Checkpoints


def fit_arguments(dataset: Path, run: Path | str, options: dict[str, Any]) -> list[Any]:
    """`fit` on `dataset`, on the CPU; `options` win."""
    options = {
        "output_dir": run,
        "data.train": dataset / "train",
        "data.validation": dataset / "validation",
        "strategy": "cpu",
    } | options
    return ["fit"] + [item for name, value in options.items() for item in (f"--{name}", value)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of the run's log."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def learnt(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records without what the clock decides."""
    return [
        {k: v for k, v in record.items() if not k.endswith(("_per_second", "_seconds"))} for record in records
    ]


def weights(run: Path) -> dict[str, np.ndarray]:
    """All variables of the newest checkpoint: the network's, the optimizer's, the log's sums."""
    checkpoints = Checkpoints(str(run / "checkpoints"))
    reader = tf.train.load_checkpoint(f"{checkpoints.path(checkpoints.latest())}/state")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
