"""Attention that recomputes its probabilities in the backward pass instead of keeping them.

They are the largest arrays of an encoder: rows · heads · length² per layer. With recomputation, only one layer's
probabilities exist at a time. The gradient is that of Dao et al., "FlashAttention" (2022), algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpu_trainer.network.dropout import KeyedDropout
from tpu_trainer.network.sequencing import schedule_after


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    bias: tf.Tensor | None,
    dropout: KeyedDropout | None,
) -> tf.Tensor:
    """Returns dropout(softmax(query · keyᵀ / √D + bias)) · value, [B, H, Q, D], in the inputs' dtype.

    The softmax is computed in float32.

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D].
        value: [B, H, K, D].
        bias: Broadcasts to [B, H, Q, K]; gets no gradient. None: 0.
        dropout: Dropout layer of the probabilities; None: no dropout.
    """
    dtype = query.dtype
    scale = tf.cast(1 / math.sqrt(query.shape[-1]), dtype)
    bias = tf.zeros([1, 1, 1, 1]) if bias is None else tf.cast(bias, tf.float32)
    seeds = None if dropout is None else dropout.seeds(query.shape[:-1])

    def dropped(values: tf.Tensor) -> tf.Tensor:
        return values if dropout is None else dropout.masked(values, seeds)

    def softmax(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        return tf.nn.softmax(scores + bias)

    @tf.custom_gradient
    def core(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        scaled = query * scale
        output = tf.matmul(dropped(tf.cast(softmax(scaled, key), dtype)), value)

        def gradient(d_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            probabilities = softmax(schedule_after(scaled, d_output, shared=2), key)
            d_value = tf.matmul(dropped(tf.cast(probabilities, dtype)), d_output, transpose_a=True)
            d_dropped = tf.cast(tf.matmul(d_output, value, transpose_b=True), tf.float32)
            # For each query, the term Σ p · dp of the softmax's gradient equals d_output · output.
            dot = tf.reduce_sum(
                tf.cast(d_output, tf.float32) * tf.cast(output, tf.float32), axis=-1, keepdims=True
            )
            d_scores = tf.cast(probabilities * (dropped(d_dropped) - dot), dtype)
            return tf.matmul(d_scores, key) * scale, tf.matmul(d_scores, scaled, transpose_a=True), d_value

        return output, gradient

    return core(query, key, value)
