"""AdamW with decay for matrices only."""

from __future__ import annotations

import re
from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import OptimizerConfig
from tpu_trainer.errors import UsageError
from tpu_trainer.training.schedule import Schedule


def decays(variable: tf.Variable, no_decay: Sequence[str] = ()) -> bool:
    """Whether weight decay applies: not to biases and norms, which are all vectors, whatever a model calls them; nor to
    variables with names that one of the regular expressions `no_decay` is found in."""
    matrix = len([dimension for dimension in variable.shape if dimension != 1]) > 1
    return matrix and not any(re.search(pattern, variable.name) for pattern in no_decay)


def build_optimizer(
    config: OptimizerConfig, schedule: Schedule, *, variables: Sequence[tf.Variable]
) -> keras.optimizers.Optimizer:
    """AdamW for `variables`, its slots made, so that a checkpoint can be read into it before the first step.

    Clipping is the train step's: it must see the gradient after it is summed over the replicas. Raises UsageError where
    a pattern of `no_decay` fits no variable.
    """
    for pattern in config.no_decay:
        if not any(re.search(pattern, variable.name) for variable in variables):
            names = ", ".join(variable.name for variable in variables[:3])
            raise UsageError(
                f"--optimizer.no_decay: {pattern!r} is found in no weight's name, such as {names}"
            )

    optimizer = keras.optimizers.AdamW(
        learning_rate=schedule,
        weight_decay=config.weight_decay,
        beta_1=config.beta1,
        beta_2=config.beta2,
        epsilon=config.epsilon,
        jit_compile=False,  # the whole step is compiled, not this part alone
    )
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in variables if not decays(variable, config.no_decay)]
    )
    optimizer.build(variables)
    return optimizer
