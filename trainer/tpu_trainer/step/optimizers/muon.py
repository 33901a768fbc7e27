"""Muon (Jordan, 2024): momentum whose matrices are orthogonalized, for the matrices of layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tpu_trainer.step.optimizers.optimizer import Progress, Slots, own_dimensions

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5
_LEAST_NORM = 1e-7
# An update's root mean square is then that of AdamW's, so that both can have the same learning rate.
_ADAMW_RMS = 0.2


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a weight is a matrix within the layers: not an embedding, a head, a norm or a bias."""
    dimensions = own_dimensions(name, shape)
    return len(dimensions) < len(shape) and len(dimensions) >= 2 and name.endswith(".weight")


class Muon:
    """The update of `torch.optim.Muon` with Nesterov momentum and adjust_lr_fn="match_rms_adamw".

    Queries, keys and values are matrices of their own. They are not divided into heads, as in the published models.
    """

    def __init__(self, *, momentum: float, rate_factor: float, dtype: tf.DType) -> None:
        """
        Args:
            momentum: Decay of the running mean of gradients.
            rate_factor: See UpdateRule.
            dtype: float32 or bfloat16, of the products.
        """
        self.rate_factor = rate_factor
        self._momentum = momentum
        self._dtype = dtype

    def slot_shapes(self, shape: Sequence[int], axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """See UpdateRule."""
        del axes
        return {"mean": tuple(shape)}

    def change(
        self, weight: tf.Tensor, gradient: tf.Tensor, slots: Slots, *, progress: Progress, axes: Sequence[int]
    ) -> tf.Tensor:
        """See UpdateRule."""
        del axes
        mean, momentum = slots["mean"], self._momentum
        mean.assign(momentum * mean + (1 - momentum) * gradient)
        direction = orthogonalize(momentum * mean + (1 - momentum) * gradient, self._dtype)
        return progress.rate * (_ADAMW_RMS * math.sqrt(max(weight.shape[-2:]))) * direction


def orthogonalize(matrices: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Returns matrices with about the same singular vectors, and singular values between 0.7 and 1.2.

    By Newton and Schulz's iteration X → aX + (bXXᵀ + c(XXᵀ)²)X, whose coefficients raise small singular values fast.

    Args:
        matrices: float32 [..., m, n].
        dtype: float32 or bfloat16, of the products.
    """
    a, b, c = _COEFFICIENTS
    norm = tf.norm(matrices, axis=[-2, -1], keepdims=True)
    x = tf.cast(matrices / tf.maximum(norm, _LEAST_NORM), dtype)
    tall = matrices.shape[-2] > matrices.shape[-1]
    for _ in range(_ITERATIONS):
        # Of the smaller side: for a tall matrix XᵀX, from the right.
        gram = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        polynomial = _sum(b, gram, c, tf.matmul(gram, gram))
        x = _sum(a, x, 1.0, tf.matmul(x, polynomial) if tall else tf.matmul(polynomial, x))
    return tf.cast(x, matrices.dtype)


def _sum(a: float, x: tf.Tensor, b: float, y: tf.Tensor) -> tf.Tensor:
    """Returns ax + by in the dtype of x, added in float32: in bfloat16, even the factors would be rounded."""
    return tf.cast(a * tf.cast(x, tf.float32) + b * tf.cast(y, tf.float32), x.dtype)
