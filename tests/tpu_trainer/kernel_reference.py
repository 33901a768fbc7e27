"""Reference implementation of the attention kernels in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tpu_trainer.network.cudnn_attention import Mask
from tpu_trainer.network.random_bits import line_bits


def run(name: str, causal: bool, *operands: tf.Tensor) -> list[tf.Tensor]:
    """Replaces attention_kernel._run: returns the output, or the gradients of queries, keys and values."""
    threshold, scale, lines, keys, *inputs = operands
    rows, length, width = inputs[0].shape
    pairs = width // 128
    bits = tf.bitcast(lines, tf.uint32)
    # The heads in their order: the first of each pair, then the second.
    first, second = (
        tf.reshape(tf.stack([bits[:, :, offset], bits[:, :, 2 + offset]], axis=2), [rows, 2 * pairs, length])
        for offset in (0, 1)
    )
    keep = line_bits((first, second), length) >= tf.bitcast(threshold, tf.uint32)
    bias, segments = tf.unstack(keys, axis=1)
    visible = tf.cast(lines[:, 0, 4], tf.float32)[:, :, None] == segments[:, None]
    if causal:
        visible &= tf.linalg.band_part(tf.ones([length, length]), -1, 0) > 0

    def heads(x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(x, [rows, length, 2 * pairs, 64]), [0, 2, 1, 3])

    with tf.GradientTape() as tape:
        query, key, value = (tf.cast(x, tf.float32) for x in inputs[:3])
        tape.watch([query, key, value])
        scores = tf.matmul(heads(query), heads(key), transpose_b=True) / 8 + bias[:, None, None]
        probabilities = tf.nn.softmax(tf.where(visible[:, None], scores, -1e9))
        weights = tf.where(keep, probabilities * scale, 0.0)
        output = tf.reshape(
            tf.transpose(tf.matmul(weights, heads(value)), [0, 2, 1, 3]), [rows, length, width]
        )
    if name == "forward":
        return [tf.cast(output, inputs[0].dtype)]
    gradients = tape.gradient(output, [query, key, value], output_gradients=tf.cast(inputs[3], tf.float32))
    return [tf.cast(gradient, inputs[0].dtype) for gradient in gradients]


def run_cudnn(operands: Sequence[tf.Tensor], *, mask: Mask, scale: float) -> list[tf.Tensor]:
    """Replaces cudnn_attention._run, in the operands' type. The backward pass computes what cuDNN documents."""
    query, key, value = operands[:3]
    groups = query.shape[2] // key.shape[2]
    length = query.shape[1]
    key, value = (tf.repeat(each, groups, axis=2) for each in (key, value))
    scores = scale * tf.einsum("blhd,bmhd->bhlm", query, key)
    place = tf.range(length)
    distance = place[:, None] - place[None]
    visible = tf.ones([length, length], tf.bool)
    if mask.causal:
        visible = distance >= 0
    if mask.window is not None:
        assert mask.causal
        visible &= distance < mask.window
    scores = tf.where(visible, scores, -1e30)
    if mask.bias is not None:
        assert mask.window is None
        scores += tf.cast(mask.bias, scores.dtype)
    if len(operands) == 3:
        statistics = tf.reduce_logsumexp(scores, axis=-1)
        probabilities = tf.exp(scores - statistics[..., None])
        return [tf.einsum("bhlm,bmhd->blhd", probabilities, value), statistics]
    statistics, d_output, output = operands[3:]
    probabilities = tf.exp(scores - statistics[..., None])
    d_value = tf.einsum("bhlm,blhd->bmhd", probabilities, d_output)
    sums = tf.einsum("blhd,blhd->bhl", output, d_output)
    d_scores = probabilities * (tf.einsum("blhd,bmhd->bhlm", d_output, value) - sums[..., None]) * scale
    d_query = tf.einsum("bhlm,bmhd->blhd", d_scores, key)
    d_key = tf.einsum("bhlm,blhd->bmhd", d_scores, query)

    def grouped(gradient: tf.Tensor) -> tf.Tensor:
        rows, length, heads, size = gradient.shape
        return tf.reduce_sum(tf.reshape(gradient, [rows, length, heads // groups, groups, size]), axis=3)

    return [d_query, grouped(d_key), grouped(d_value)]
