"""Products with weights, in PyTorch's layout."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tpu_trainer.network.division import ONE_DEVICE, Division


def linear(
    x: tf.Tensor, weights: Mapping[str, tf.Tensor], name: str, division: Division = ONE_DEVICE
) -> tf.Tensor:
    """Returns x · Wᵀ + b, [..., out], in the dtype of `x`.

    Args:
        x: [..., in].
        weights: Has NAME.weight, float32[out, in], and NAME.bias, float32[out], if there is a bias.
        name: NAME.
        division: How devices divide the axes of `x`.
    """
    matrix = tf.cast(weights[f"{name}.weight"], x.dtype)
    # Of matrices: with several axes of tokens, XLA transposes copies of activations for the gradient of W on CPUs.
    flat = tf.reshape(x if division.sequence == 1 else division.by_group(x), [-1, x.shape[-1]])
    result = tf.matmul(flat, matrix, transpose_b=True)
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        result += tf.cast(bias, x.dtype)
    if division.sequence == 1:
        return tf.reshape(result, [*x.shape[:-1], matrix.shape[0]])
    return division.by_row(tf.reshape(result, [division.groups, -1, matrix.shape[0]]), x.shape[1])
