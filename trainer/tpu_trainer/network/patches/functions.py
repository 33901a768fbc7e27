"""Functions replaced in transformers' modules, where its layers look them up when they are called."""

from __future__ import annotations

import sys
from collections.abc import Callable

import tensorflow as tf
from transformers import TFPreTrainedModel
from transformers.tf_utils import stable_softmax


def replace_functions(network: TFPreTrainedModel) -> None:
    """Replaces, in the module that all layers of `network` are from, the functions below that it has."""
    module = sys.modules[type(network).__module__]
    for name, function in _REPLACED.items():
        if hasattr(module, name):
            setattr(module, name, function)


def gather_along(x: tf.Tensor, indices: tf.Tensor, gather_axis: int) -> tf.Tensor:
    """numpy.take_along_axis; DeBERTa's own branches on the rank as a tensor, which no step can be traced with."""
    rank = len(x.shape)
    order = [axis for axis in range(rank) if axis != gather_axis % rank] + [gather_axis % rank]
    inverse = [order.index(axis) for axis in range(rank)]
    gathered = tf.gather(tf.transpose(x, order), tf.transpose(indices, order), batch_dims=rank - 1)
    return tf.transpose(gathered, inverse)


def float32_softmax(logits: tf.Tensor, axis: int | None = None, name: str | None = None) -> tf.Tensor:
    """The softmax of `logits` in their type, computed in float32, as Megatron-LM and PyTorch's classes do.

    transformers' TensorFlow classes leave it to their scores' type, which is bfloat16 under mixed precision.

    The backward pass keeps the rounded probabilities, so that it holds no more bytes than a softmax in bfloat16.
    """
    if logits.dtype != tf.bfloat16:
        return stable_softmax(logits, axis=axis, name=name)

    @tf.custom_gradient
    def rounded(logits: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        scores = tf.cast(logits, tf.float32)
        output = tf.cast(tf.nn.softmax(scores, axis=axis, name=name), logits.dtype)

        def gradient(d_output: tf.Tensor) -> tf.Tensor:
            probabilities, d_probabilities = (tf.cast(value, tf.float32) for value in (output, d_output))
            products = probabilities * d_probabilities
            total = tf.reduce_sum(products, axis=-1 if axis is None else axis, keepdims=True)
            return tf.cast(products - probabilities * total, logits.dtype)

        return output, gradient

    return rounded(logits)


_REPLACED = {"torch_gather": gather_along, "stable_softmax": float32_softmax}
