"""Dropout as a function of (seed, step, row, layer): not of the batch that a row stands in, nor of the replica.

So a resumed run repeats what the killed one did, and micro-batches, replicas and layers that are computed twice all see
the same bits. Keras' own dropout draws from a generator whose state is in no checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.network.call_context import CallContext, CallValues
from tpu_trainer.network.random_bits import line_bits, threefry2x32

# The smallest number of rounds that passes all statistical tests (Salmon et al., table 2): these bits are many.
_ROUNDS = 13


# Layers of DeBERTa's that drop out the embeddings of relative positions, which all rows of a batch share.
_SHARED_BY_ROWS = frozenset(("pos_dropout",))


def dropout_words(
    values: CallValues, shape: Sequence[int], layer: int, *, shared: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Two uint32 of `shape` for one layer, for line_bits.

    The first axis is rows, or rows times something; if `shared`, there are no rows and the bits are those of the step.
    """
    if values.dropout_key is None or values.row is None:
        raise RuntimeError("dropout in training needs a key and the rows' ids: see CallContext")
    if shared:
        words = dropout_words(replace(values, row=tf.zeros([1], tf.int32)), [1, *shape], layer)
        return words[0][0], words[1][0]
    batch, *lines = shape
    repeats, rest = divmod(batch, values.row.shape[0])
    if rest:
        raise RuntimeError(
            f"dropout of an array of {batch} lines, which are not those of {values.row.shape[0]} rows"
        )
    lane = np.arange(batch, dtype=np.uint32) % repeats
    row = tf.repeat(tf.cast(values.row, tf.uint32), repeats)
    keys = tuple(
        tf.reshape(word, [batch] + [1] * len(lines))
        for word in threefry2x32(values.dropout_key, (row, lane << 16 | np.uint32(layer)))
    )
    line = np.arange(math.prod(lines), dtype=np.uint32).reshape(lines)
    return threefry2x32(keys, (line, 0), rounds=_ROUNDS)


class _Keyed:
    """What dropout layers become: their bits come from the call's key instead of a generator."""

    context: CallContext
    index: int
    rate: float

    @property
    def threshold(self) -> int:
        """Elements whose 32 bits lie below it become zero."""
        return round(self.rate * 2**32)

    @property
    def scale(self) -> float:
        """What the rest is multiplied by."""
        return 1 / (1 - self.threshold / 2**32)

    def words(self, shape: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """What decides this layer's mask for lines of `shape`: an input's shape without its last axis."""
        return dropout_words(self.context.values, shape, self.index, shared=self.name in _SHARED_BY_ROWS)

    def masked(self, values: tf.Tensor, words: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """`values` ([..., n]) with a share `rate` of them zeroed and the rest scaled up; `words` are those of [...]."""
        keep = line_bits(words, values.shape[-1]) >= tf.constant(self.threshold, tf.uint32)
        return tf.where(keep, values * tf.cast(self.scale, values.dtype), tf.zeros([], values.dtype))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Zeroes a share `rate` of the inputs and scales up the rest, where `training`."""
        if not training or self.rate == 0:
            return inputs
        if len(inputs.shape) == 1:
            return tf.squeeze(self.call(inputs[:, None], training), axis=1)
        return self.masked(inputs, self.words(inputs.shape[:-1]))


class KeyedDropout(_Keyed, keras.layers.Dropout):
    """keras.layers.Dropout with bits from the call's key. Made by `key_dropout` only."""


class KeyedStableDropout(_Keyed, keras.layers.Layer):
    """DeBERTa's StableDropout with bits from the call's key. Made by `key_dropout` only."""

    @property
    def rate(self) -> float:
        """The share of elements that become zero."""
        return self.drop_prob


# By name: DeBERTa's modules need not be imported for other models.
_KEYED_CLASSES = {
    "Dropout": KeyedDropout,
    "TFDebertaStableDropout": KeyedStableDropout,
    "TFDebertaV2StableDropout": KeyedStableDropout,
}


def key_dropout(model: keras.Model, context: CallContext) -> None:
    """Makes every dropout layer in `model` draw from the context's key."""
    layers = [layer for layer in model.submodules if type(layer).__name__ in _KEYED_CLASSES]
    for index, layer in enumerate(layers):
        layer.__class__ = _KEYED_CLASSES[type(layer).__name__]
        layer.context = context
        layer.index = index
