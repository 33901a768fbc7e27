"""Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023), as in optax."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tpu_trainer.step.optimizers.optimizer import Progress, Slots


class Lion:
    """Changes each weight by the learning rate, in the direction of a running mean of gradients."""

    rate_factor = 1.0

    def __init__(self, *, beta1: float, beta2: float) -> None:
        """
        Args:
            beta1: Weight of the running mean in the direction; the current gradient has the rest.
            beta2: Decay of the running mean.
        """
        self._beta1 = beta1
        self._beta2 = beta2

    def slot_shapes(self, shape: Sequence[int], axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """See UpdateRule."""
        del axes
        return {"mean": tuple(shape)}

    def change(
        self, weight: tf.Tensor, gradient: tf.Tensor, slots: Slots, *, progress: Progress, axes: Sequence[int]
    ) -> tf.Tensor:
        """See UpdateRule."""
        del weight, axes
        mean = slots["mean"]
        direction = tf.sign(self._beta1 * mean + (1 - self._beta1) * gradient)
        mean.assign(self._beta2 * mean + (1 - self._beta2) * gradient)
        return progress.rate * direction
