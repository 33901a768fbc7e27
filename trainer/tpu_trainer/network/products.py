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
    # Not `...i,oi->...o`, whose gradient for W is the sum of a product for each token.
    axes = "abcd"[: x.shape.rank - 1]
    result = tf.einsum(f"{axes}i,oi->{axes}o", x, tf.cast(weights[f"{name}.weight"], x.dtype))
    bias = weights.get(f"{name}.bias")
    return result if bias is None else result + tf.cast(bias, x.dtype)
