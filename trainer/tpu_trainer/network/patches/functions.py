"""Replaces functions in transformers' modules, where layers look them up at each call."""

from __future__ import annotations

import sys
from collections.abc import Callable

import tensorflow as tf
from transformers import TFPreTrainedModel
from transformers.tf_utils import stable_softmax


def replace_functions(network: TFPreTrainedModel) -> None:
    """Replaces the functions below in the module that defines the layers of `network`."""
    module = sys.modules[type(network).__module__]
    for name, function in _REPLACED.items():
        if hasattr(module, name):
            setattr(module, name, function)


def gather_along(x: tf.Tensor, indices: tf.Tensor, gather_axis: int) -> tf.Tensor:
    """numpy.take_along_axis. DeBERTa's version branches on a tensor, the rank, and cannot be traced in a step."""
    rank = len(x.shape)
    order = [axis for axis in range(rank) if axis != gather_axis % rank] + [gather_axis % rank]
    inverse = [order.index(axis) for axis in range(rank)]
    gathered = tf.gather(tf.transpose(x, order), tf.transpose(indices, order), batch_dims=rank - 1)
    return tf.transpose(gathered, inverse)


def float32_softmax(logits: tf.Tensor, axis: int | None = None, name: str | None = None) -> tf.Tensor:
    """Returns the softmax in the dtype of `logits`, computed in float32, as in Megatron-LM and PyTorch's classes.

    transformers' TensorFlow classes compute it in the dtype of the scores, which is bfloat16 in mixed precision. The
    backward pass keeps the rounded probabilities, so it needs no more memory than a softmax in bfloat16.
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
