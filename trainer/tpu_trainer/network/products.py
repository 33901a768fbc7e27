"""Products with weights, in PyTorch's layout."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


def linear(x: tf.Tensor, weights: Mapping[str, tf.Tensor], name: str) -> tf.Tensor:
    """Returns x · Wᵀ + b, [..., out], in the dtype of `x`.

    Args:
        x: [..., in].
        weights: Has NAME.weight, float32[out, in], and NAME.bias, float32[out], if there is a bias.
        name: NAME.
    """
    # Of matrices: with several axes of tokens, XLA transposes copies of activations for the gradient of W on CPUs.
    matrix = tf.cast(weights[f"{name}.weight"], x.dtype)
    result = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), matrix, transpose_b=True)
    bias = weights.get(f"{name}.bias")
    if bias is not None:
        result += tf.cast(bias, x.dtype)
    return tf.reshape(result, [*x.shape[:-1], matrix.shape[0]])
