"""GPT-2's fused projection to queries, keys and values, with its columns in an order that devices can divide."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from transformers import TFPreTrainedModel


def divide_fused_projections(network: TFPreTrainedModel, groups: int) -> None:
    """Makes GPT-2's attention expect the columns of `c_attn` in the order of `grouped`.

    A device then has the queries, keys and values of its own heads. In the original order, it would have columns of
    queries alone, or of keys, and attention would exchange its inputs. Other networks stay unchanged.
    """
    for layer in network.submodules if groups > 1 else ():
        if type(layer).__name__.endswith("TFAttention") and hasattr(layer, "c_attn"):
            name = type(layer).__name__
            layer.__class__ = type(f"Divided{name}", (_DividedAttention, type(layer)), {})
            layer.c_attn.__class__ = type(
                "DividedConv1D", (_DividedProjection, type(layer.c_attn)), {"groups": groups}
            )


class _DividedProjection:
    """TFConv1D with columns in the order of `grouped`."""

    groups: int

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [B, L, 3, H]: queries, keys and values, each in the original order."""
        projected = super().call(x)
        rows, length, width = projected.shape
        parts = tf.reshape(projected, [rows, length, self.groups, 3, width // (3 * self.groups)])
        return tf.reshape(tf.transpose(parts, [0, 1, 3, 2, 4]), [rows, length, 3, width // 3])


class _DividedAttention:
    """TFGPT2's TFAttention, which splits the third axis of the projection in three."""

    def split_heads(self, x: tf.Tensor) -> tf.Tensor:
        return super().split_heads(tf.squeeze(x, axis=2))


def grouped(values: np.ndarray, groups: int) -> np.ndarray:
    """Reorders the last axis from (3, groups, n) to (groups, 3, n).

    Example: six columns each of queries, keys and values, for two groups, before and after:
        q0 q1 q2 q3 q4 q5  k0 k1 k2 k3 k4 k5  v0 v1 v2 v3 v4 v5
        q0 q1 q2 k0 k1 k2 v0 v1 v2  q3 q4 q5 k3 k4 k5 v3 v4 v5
    """
    return _reordered(values, (3, groups))


def ungrouped(values: np.ndarray, groups: int) -> np.ndarray:
    """The inverse of `grouped`."""
    return _reordered(values, (groups, 3))


def _reordered(values: np.ndarray, axes: tuple[int, int]) -> np.ndarray:
    parts = values.reshape(*values.shape[:-1], *axes, -1)
    return np.ascontiguousarray(parts.swapaxes(-3, -2)).reshape(values.shape)
