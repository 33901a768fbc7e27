"""AdamW as in PyTorch, with weight decay for matrices only."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import OptimizerConfig
from tpu_trainer.step.schedule import Schedule
from tpu_trainer.support.errors import UsageError


class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW with the update of `torch.optim.AdamW`.

    Keras adds epsilon to the root of the uncorrected mean square, as in section 2 of Kingma and Ba, "Adam" (2015): in
    its first steps, an epsilon then has the effect of one that is 1 / √(1 - beta2) times as large in PyTorch, 32 times
    by default. Hyperparameters are published for PyTorch's.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable` and its running means with a dense gradient."""
        index = self._index_dict[self._var_key(variable)]
        mean, mean_square = self._momentums[index], self._velocities[index]
        step = tf.cast(self.iterations + 1, variable.dtype)
        # Not `mean += (gradient - mean) * …`, which loses a small gradient after a large one.
        mean.assign(self.beta_1 * mean + (1 - self.beta_1) * gradient)
        mean_square.assign(self.beta_2 * mean_square + (1 - self.beta_2) * tf.square(gradient))
        root = tf.sqrt(mean_square) / tf.sqrt(_share_of_gradients(self.beta_2, step)) + self.epsilon
        rate = tf.cast(self.learning_rate, variable.dtype) / _share_of_gradients(self.beta_1, step)
        variable.assign_sub(rate * mean / root)


def _share_of_gradients(decay: float, step: tf.Tensor) -> tf.Tensor:
    """Returns 1 - decay ** step: the weight of the gradients in a running mean that starts at 0.

    By expm1, because the plain formula in float32 is off by 1e-5 for 0.999 and the first step.
    """
    return -tf.math.expm1(step * (math.log(decay) if decay else -math.inf))


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

    optimizer = AdamW(
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
