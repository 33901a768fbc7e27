"""Functions of transformers' modules that are replaced, because its layers look them up there when they are called."""

from __future__ import annotations

import sys

import tensorflow as tf
from transformers import TFPreTrainedModel


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


_REPLACED = {"torch_gather": gather_along}
