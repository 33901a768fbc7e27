"""Writes what one of the trainer's optimizers makes of weights and gradients. Runs in the trainer's environment.

    python write_updates.py FOLDER

FOLDER/options.json has the values of `OptimizerConfig`. FOLDER/given.npz has an array for each weight's name, and the
gradients of all steps as <name>_gradients. FOLDER/updated.npz has each weight after each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from tpu_trainer.config import OptimizerConfig, ScheduleConfig
from tpu_trainer.step.optimizers.build import build_optimizer
from tpu_trainer.step.schedule import Schedule


def main(folder: Path) -> None:
    """Writes updated.npz."""
    config = OptimizerConfig(**json.loads((folder / "options.json").read_text()))
    with np.load(folder / "given.npz") as arrays:
        values = dict(arrays)
    weights = {
        name: tf.Variable(value, name=name)
        for name, value in values.items()
        if not name.endswith("_gradients")
    }
    gradients = [values[f"{name}_gradients"] for name in weights]
    schedule = Schedule(ScheduleConfig(name="constant"), peak=config.learning_rate, steps=len(gradients[0]))
    optimizer = build_optimizer(config, schedule, weights=weights)

    @tf.function(jit_compile=True)
    def step(gradients: list[tf.Tensor]) -> None:
        # Task.step does the same.
        clipped, _ = tf.clip_by_global_norm(gradients, config.clip_norm)
        optimizer.apply(clipped)

    updated_weights: dict[str, list[np.ndarray]] = {name: [] for name in weights}
    for step_gradients in zip(*gradients, strict=True):
        step([tf.constant(gradient) for gradient in step_gradients])
        for name, weight in weights.items():
            updated_weights[name].append(weight.numpy())
    np.savez(folder / "updated.npz", **{name: np.stack(each) for name, each in updated_weights.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
