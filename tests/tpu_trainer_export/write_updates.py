"""Writes what the trainer's optimizer makes of given weights and gradients. Runs in the trainer's environment.

    python write_updates.py FOLDER

FOLDER/given.npz has `matrix`, `vector`, their gradients in each step as `matrix_gradients` and `vector_gradients`, and
the numbers `epsilon`, `learning_rate`, `weight_decay` and `clip_norm`. FOLDER/updated.npz has `matrix` and `vector`
after each step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from tpu_trainer.config import OptimizerConfig, ScheduleConfig
from tpu_trainer.step.optimizer import build_optimizer
from tpu_trainer.step.schedule import Schedule


def main(folder: Path) -> None:
    """Writes updated.npz."""
    with np.load(folder / "given.npz") as arrays:
        values = {name: arrays[name] for name in arrays.files}
    numbers = ("epsilon", "learning_rate", "weight_decay", "clip_norm")
    config = OptimizerConfig(**{name: float(values[name]) for name in numbers})
    names = ("matrix", "vector")
    variables = [tf.Variable(values[name], name=name) for name in names]
    gradients = [values[f"{name}_gradients"] for name in names]
    schedule = Schedule(ScheduleConfig(name="constant"), peak=config.learning_rate, steps=len(gradients[0]))
    optimizer = build_optimizer(config, schedule, variables=variables)
    updated_weights: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for step_gradients in zip(*gradients, strict=True):
        # Task.step does the same.
        clipped, _ = tf.clip_by_global_norm([tf.constant(each) for each in step_gradients], config.clip_norm)
        optimizer.apply_gradients(zip(clipped, variables, strict=True), skip_gradients_aggregation=True)
        for name, variable in zip(names, variables, strict=True):
            updated_weights[name].append(variable.numpy())
    np.savez(folder / "updated.npz", **{name: np.stack(each) for name, each in updated_weights.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
