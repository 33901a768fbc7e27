"""Cross-entropy over a large vocabulary without an array of all logits.

A batch's logits are its biggest array by far (16 rows of 1024 tokens, 50,304 ids: 3.3 GB in float32), and their
gradient is as big again. Both are made here some positions at a time. In training the gradient with respect to the
inputs is worked out in the forward pass, while the logits are at hand, so that nothing is computed twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tpu_trainer.network.sequencing import after

# Logits that exist at once: 128 MB in bfloat16. A piece reads and writes the sum of the matrix's gradients, so that
# smaller ones would move more bytes.
_MAX_LOGITS = 2**26
_NEVER = -1e9


class OutputWeights(NamedTuple):
    """The last, linear layer: logits = hidden · matrixᵀ + bias."""

    matrix: tf.Tensor
    """float32[V, H]."""
    bias: tf.Tensor
    """float32[V]."""


def mask_surplus(bias: tf.Tensor, size: int) -> tf.Tensor:
    """`bias` (float32[V]) such that no softmax sees the ids from `size` on."""
    return tf.concat([bias[:size], tf.fill([bias.shape[0] - size], tf.constant(_NEVER, bias.dtype))], axis=0)


def cross_entropy_sums(
    *,
    hidden: tf.Tensor,
    output: OutputWeights,
    targets: tf.Tensor,
    weights: tf.Tensor,
    size: int,
    training: bool,
    max_logits: int = _MAX_LOGITS,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The weighted sums of the cross-entropy, in nats, and of the targets predicted right: float32 scalars.

    Products are taken in `hidden`'s type and summed in float32; the softmax is float32. In training logits are rounded
    to `hidden`'s type before all else, as in Megatron-LM: in bfloat16 that halves what the loss reads and writes. A
    target that has the highest logit together with other ids counts as right by its share, as rounding makes such ties.

    Args:
        hidden: [N, H], float32 or bfloat16; N static.
        output: The last layer.
        targets: int32[N].
        weights: float32[N].
        size: The vocabulary's true size, at most V; the ids from there on are never predicted.
        training: Whether the gradient is to be taken.
        max_logits: Logits that may exist at once.
    """
    logits_dtype = hidden.dtype if training else tf.float32
    count, surplus = hidden.shape[0], output.matrix.shape[0]
    pieces = max(1, math.ceil(count * surplus / max_logits))
    # Whole sublanes of a TPU.
    piece = -(-math.ceil(count / pieces) // 8) * 8

    def sums(
        hidden: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], object]:
        narrow = tf.cast(matrix, hidden.dtype)
        masked_bias = mask_surplus(bias, size)
        loss = correct = tf.zeros([])
        d_hidden, d_matrix, d_bias = [], tf.zeros(matrix.shape), tf.zeros(bias.shape)
        # Not a tf.while_loop: XLA's cost analysis would count its body once.
        for first in range(0, count, piece):
            part = slice(first, min(first + piece, count))
            # One piece after the other: all at once they would need the memory that this is to save.
            rows = hidden[part] if first == 0 else after(hidden[part], d_matrix if training else loss)
            rounded = _round(_product(rows, narrow, transpose_b=True) + masked_bias, logits_dtype)
            highest = tf.cast(tf.reduce_max(rounded, axis=-1, keepdims=True), tf.float32)
            logits = tf.cast(rounded, tf.float32)
            at_target = tf.range(logits.shape[-1])[None, :] == targets[part][:, None]
            exponentials = tf.exp(logits - highest)
            total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
            of_target = tf.reduce_sum(tf.where(at_target, logits, 0.0), axis=-1, keepdims=True)
            weight = weights[part][:, None]
            loss += tf.reduce_sum((tf.math.log(total) + highest - of_target) * weight)
            ties = tf.reduce_sum(tf.cast(logits == highest, tf.float32), axis=-1, keepdims=True)
            # At least 1 but where logits are NaN.
            share = tf.cast(of_target >= highest, tf.float32) / tf.maximum(ties, 1.0)
            correct += tf.reduce_sum(share * weight)
            if not training:
                continue

            d_logits = (exponentials / total - tf.cast(at_target, tf.float32)) * weight
            d_bias += tf.reduce_sum(d_logits, axis=0)
            d_logits = tf.cast(d_logits, hidden.dtype)
            d_hidden.append(tf.cast(_product(d_logits, narrow), hidden.dtype))
            d_matrix += _product(d_logits, rows, transpose_a=True)

        def gradient(d_loss: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return (
                tf.cast(d_loss, hidden.dtype) * tf.concat(d_hidden, axis=0),
                d_loss * d_matrix,
                d_loss * d_bias,
            )

        return (loss, correct), gradient

    if training:
        return tf.custom_gradient(sums)(hidden, output.matrix, output.bias)
    return sums(hidden, output.matrix, output.bias)[0]


def _product(
    a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False
) -> tf.Tensor:
    """A matrix product whose sums, and result, are float32 whatever the type of its factors."""
    if a.dtype == tf.float32 or tf.executing_eagerly():
        # Without XLA there is no such kernel for bfloat16.
        a, b = tf.cast(a, tf.float32), tf.cast(b, tf.float32)
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, output_type=tf.float32)


def _round(logits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """float32 logits in `dtype`, float32 or bfloat16, with the same bits wherever they are used."""
    if dtype == tf.bfloat16 and not tf.executing_eagerly():
        # XLA may leave out a conversion there and back, in one place and not in another.
        logits = gen_xla_ops.xla_reduce_precision(logits, exponent_bits=8, mantissa_bits=7)
    return tf.cast(logits, dtype)
