"""Dropout as a function of (seed, step, row, layer): not of the batch that a row stands in, nor of the replica.

So a resumed run repeats what the killed one did, and micro-batches, replicas and layers that are computed twice all see
the same bits. Keras' own dropout draws from a generator whose state is in no checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.random_bits import line_bits, threefry2x32

# The smallest number of rounds that passes all statistical tests (Salmon et al., table 2): these bits are many.
_ROUNDS = 13


class DropoutKey:
    """The key, and the rows' ids, that all dropout layers of one model use while it is called."""

    def __init__(self) -> None:
        self._value: tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor] | None = None

    @contextmanager
    def of(self, key: tuple[tf.Tensor, tf.Tensor], row: tf.Tensor) -> Iterator[None]:
        """Calls of the model in this context draw from `key` (two uint32 scalars) for the rows `row` (int32[B])."""
        self._value = (key, row)
        try:
            yield
        finally:
            self._value = None

    def bits(self, shape: tf.TensorShape, layer: int) -> tf.Tensor:
        """uint32 of `shape` for one layer. The first axis is rows, or rows times something."""
        if self._value is None:
            raise RuntimeError("dropout in training needs a key: call the model in DropoutKey.of")
        key, row = self._value
        batch, *lines, length = [*shape, 1] if len(shape) == 1 else shape
        repeats = batch // row.shape[0]
        lane = np.arange(batch, dtype=np.uint32) % repeats
        keys = tuple(
            tf.reshape(word, [batch] + [1] * len(lines))
            for word in threefry2x32(
                key, (tf.repeat(tf.cast(row, tf.uint32), repeats), lane << 16 | np.uint32(layer))
            )
        )
        line = np.arange(math.prod(lines), dtype=np.uint32).reshape(lines)
        return tf.reshape(line_bits(threefry2x32(keys, (line, 0), rounds=_ROUNDS), length), shape)


class KeyedDropout(keras.layers.Dropout):
    """keras.layers.Dropout with bits from a key instead of a generator. Made by `key_dropout` only."""

    key: DropoutKey
    index: int

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Zeroes a share `rate` of the inputs and scales up the rest, where `training`."""
        if not training or self.rate == 0:
            return inputs
        threshold = round(self.rate * 2**32)
        keep = self.key.bits(inputs.shape, self.index) >= tf.constant(threshold, tf.uint32)
        scale = 1 / (1 - threshold / 2**32)
        return tf.where(keep, inputs * tf.cast(scale, inputs.dtype), tf.zeros([], inputs.dtype))


def key_dropout(model: keras.Model) -> DropoutKey:
    """Makes every dropout layer in `model` draw from one key, which it returns."""
    key = DropoutKey()
    layers = [layer for layer in model.submodules if type(layer) is keras.layers.Dropout]
    for index, layer in enumerate(layers):
        # Libraries build these layers themselves, deep inside their models: they can only be changed where they are.
        layer.__class__ = KeyedDropout
        layer.key = key
        layer.index = index
    return key
