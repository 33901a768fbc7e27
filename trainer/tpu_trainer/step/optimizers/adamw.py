"""AdamW as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tpu_trainer.step.optimizers.optimizer import Progress, Slots


class AdamW:
    """The update of `torch.optim.AdamW`: epsilon is added to the root of the mean square after its bias correction.

    Kingma and Ba, "Adam" (2015), section 2, add it before: in the first steps, an epsilon then has the effect of one
    that is 1 / √(1 - beta2) times as large in PyTorch, 32 times by default.
    """

    rate_factor = 1.0

    def __init__(self, *, beta1: float, beta2: float, epsilon: float) -> None:
        """
        Args:
            beta1: Decay of the running mean of gradients.
            beta2: Decay of the running mean of squared gradients.
            epsilon: Added to the divisor.
        """
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon

    def slot_shapes(self, shape: Sequence[int], axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """See UpdateRule."""
        del axes
        return {"mean": tuple(shape), "mean_square": tuple(shape)}

    def change(
        self, weight: tf.Tensor, gradient: tf.Tensor, slots: Slots, *, progress: Progress, axes: Sequence[int]
    ) -> tf.Tensor:
        """See UpdateRule."""
        del weight, axes
        mean, mean_square = slots["mean"], slots["mean_square"]
        # Not `mean += (gradient - mean) * …`, which loses a small gradient after a large one.
        mean.assign(self._beta1 * mean + (1 - self._beta1) * gradient)
        mean_square.assign(self._beta2 * mean_square + (1 - self._beta2) * tf.square(gradient))
        root = (
            tf.sqrt(mean_square) / tf.sqrt(_share_of_gradients(self._beta2, progress.update)) + self._epsilon
        )
        return progress.rate / _share_of_gradients(self._beta1, progress.update) * mean / root


def _share_of_gradients(decay: float, update: tf.Tensor) -> tf.Tensor:
    """Returns 1 - decay ** update: the weight of the gradients in a running mean that starts at 0.

    By expm1, because the plain formula in float32 is off by 1e-5 for 0.999 and the first update.
    """
    return -tf.math.expm1(update * (math.log(decay) if decay else -math.inf))
