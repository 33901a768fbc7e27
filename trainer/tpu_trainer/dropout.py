"""Dropout as a function of (seed, step, replica, layer), so that a resumed run repeats what the killed one did.

Keras' own dropout draws from a generator whose state is in no checkpoint.
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.random_bits import threefry2x32


class DropoutKey:
    """The key that all dropout layers of one model use while a step is traced."""

    def __init__(self) -> None:
        self.value: tuple[tf.Tensor, tf.Tensor] | None = None


class KeyedDropout(keras.layers.Dropout):
    """keras.layers.Dropout with bits from a key instead of a generator. Made by `key_dropout` only."""

    key: DropoutKey
    index: int

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Zeroes a share `rate` of the inputs and scales up the rest, where `training`."""
        if not training or self.rate == 0:
            return inputs
        if self.key.value is None:
            raise RuntimeError("dropout in training needs a key: set DropoutKey.value first")
        seed = tf.stack(threefry2x32(self.key.value, (self.index, 0)))
        bits = tf.random.stateless_uniform(
            tf.shape(inputs), seed=tf.bitcast(seed, tf.int32), minval=None, maxval=None, dtype=tf.uint32
        )
        keep = bits >= tf.constant(round(self.rate * 2**32), tf.uint32)
        return tf.where(keep, inputs / tf.cast(1 - self.rate, inputs.dtype), tf.zeros([], inputs.dtype))


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
