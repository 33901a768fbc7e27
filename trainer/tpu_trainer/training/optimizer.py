"""AdamW with weight decay for matrices only."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import OptimizerConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.training.schedule import Schedule


def decays(variable: tf.Variable, no_decay: Sequence[str] = ()) -> bool:
    """Whether weight decay applies to a variable.

    It does not apply to vectors, which biases and norms are in every model, or to variables whose name contains a
    match of a regular expression in `no_decay`.
    """
    matrix = len([dimension for dimension in variable.shape if dimension != 1]) > 1
    return matrix and not any(re.search(pattern, variable.name) for pattern in no_decay)


def build_optimizer(
    config: OptimizerConfig, schedule: Schedule, *, variables: Sequence[tf.Variable]
) -> keras.optimizers.Optimizer:
    """Builds AdamW for `variables`, including its slots, so that a checkpoint can be loaded before the first step.

    It does not clip: the train step clips the gradient, after summing it over the replicas.

    Raises:
        UsageError: If a pattern of `no_decay` matches no variable.
    """
    for pattern in config.no_decay:
        if not any(re.search(pattern, variable.name) for variable in variables):
            names = ", ".join(variable.name for variable in variables[:3])
            raise UsageError(
                f"--optimizer.no_decay: {pattern!r} matches no weight's name; names are, for example, {names}"
            )

    optimizer = keras.optimizers.AdamW(
        learning_rate=schedule,
        weight_decay=config.weight_decay,
        beta_1=config.beta1,
        beta_2=config.beta2,
        epsilon=config.epsilon,
        jit_compile=False,  # the whole step is compiled
    )
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in variables if not decays(variable, config.no_decay)]
    )
    optimizer.build(variables)
    return optimizer
