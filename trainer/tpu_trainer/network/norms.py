"""Normalizations and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tpu_trainer.network.architecture import Activation, Norm


def normalize(
    x: tf.Tensor,
    norm: Norm,
    weights: Mapping[str, tf.Tensor],
    name: str,
    kept: Callable[[str, tf.Tensor], tf.Tensor] = lambda _, value: value,
) -> tf.Tensor:
    """Returns `x` ([..., n]) normalized over its last axis, in its dtype, computed in float32.

    The gradient is computed from the input and its statistics, so that they are all that must be kept.

    Args:
        x: float32 or bfloat16.
        norm: The kind.
        weights: Has NAME.weight and NAME.bias, float32[n], if the norm has them.
        name: NAME.
        kept: Keeps the statistics, float32[...]: NAME.mean and NAME.variance.
    """
    wide = tf.cast(x, tf.float32)
    if norm.kind == "layer":
        wide -= kept(f"{name}.mean", tf.reduce_mean(wide, axis=-1))[..., None]
    variance = kept(f"{name}.variance", tf.reduce_mean(tf.square(wide), axis=-1))
    result = wide * tf.math.rsqrt(variance + norm.epsilon)[..., None]
    if norm.weight:
        result *= weights[f"{name}.weight"] + norm.offset
    if norm.bias:
        result += weights[f"{name}.bias"]
    return tf.cast(result, x.dtype)


def activate(x: tf.Tensor, activation: Activation) -> tf.Tensor:
    """Returns the activation of each element."""
    return _ACTIVATIONS[activation](x)


def _gelu(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1 + tf.math.erf(x / math.sqrt(2)))


def _gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu_fast(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * x * (1 + tf.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "gelu_fast": _gelu_fast,
    "quick_gelu": lambda x: x * tf.sigmoid(1.702 * x),
    "relu": tf.nn.relu,
    "relu2": lambda x: tf.square(tf.nn.relu(x)),
    "silu": lambda x: x * tf.sigmoid(x),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
}
