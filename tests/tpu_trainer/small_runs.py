"""Command lines and results of small runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.runs.checkpoint import Checkpoints


def fit_arguments(dataset: Path, run: Path | str, options: dict[str, Any]) -> list[Any]:
    """Returns a command line of `fit` on `dataset` and the CPU; `options` override."""
    options = {
        "output_dir": run,
        "data.train": dataset / "train",
        "data.validation": dataset / "validation",
        "strategy": "cpu",
    } | options
    return ["fit"] + [item for name, value in options.items() for item in (f"--{name}", value)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Returns the records of the run's log."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def learnt(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records without timings."""
    return [
        {k: v for k, v in record.items() if not k.endswith(("_per_second", "_seconds"))} for record in records
    ]


def weights(run: Path) -> dict[str, np.ndarray]:
    """Returns all variables of the newest checkpoint: those of the network and the optimizer, and the running sums."""
    checkpoints = Checkpoints(str(run / "checkpoints"))
    reader = tf.train.load_checkpoint(f"{checkpoints.path(checkpoints.latest())}/state")
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal_but_for_rounding(run: Path, reference: Path) -> None:
    """Checks that two runs have the same losses, evaluations and variables, apart from rounding."""
    for logged, expected in zip(learnt(metrics(run)), learnt(metrics(reference)), strict=True):
        figures = (logged.get("eval", logged), expected.get("eval", expected))
        assert figures[0] == pytest.approx(figures[1], rel=1e-5), logged["step"]
    values, originals = weights(run), weights(reference)
    assert values.keys() == originals.keys()
    for name, value in originals.items():
        scale = 1e-5 * max(1e-3, np.abs(value).max())
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=scale, err_msg=name)
