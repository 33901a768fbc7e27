"""Dropout as a function of (seed, step, row, layer): not of the batch that a row is in, nor of the replica.

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


def line_seeds(
    values: CallValues, shape: Sequence[int], layer: int, *, shared: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """The seeds of line_bits for one layer: two uint32 arrays of `shape`.

    The first axis is rows, or rows times something; if `shared`, there are no rows and the seeds are those of the step.
    """
    if values.dropout_key is None or values.row is None:
        raise RuntimeError("dropout in training needs a key and the rows' ids: see CallContext")
    if shared:
        seeds = line_seeds(replace(values, row=tf.zeros([1], tf.int32)), [1, *shape], layer)
        return seeds[0][0], seeds[1][0]
    batch, *lines = shape
    repeats, rest = divmod(batch, values.row.shape[0])
    if rest:
        raise RuntimeError(
            f"dropout of an array of {batch} lines, which are not those of {values.row.shape[0]} rows"
        )
    lane = np.arange(batch, dtype=np.uint32) % repeats
    row = tf.repeat(tf.cast(values.row, tf.uint32), repeats)
    keys = tuple(
        tf.reshape(key, [batch] + [1] * len(lines))
        for key in threefry2x32(values.dropout_key, (row, lane << 16 | np.uint32(layer)))
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

    def seeds(self, shape: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """The seeds of this layer's mask for lines of `shape`: an input's shape without its last axis."""
        return line_seeds(self.context.values, shape, self.index, shared=self.name in _SHARED_BY_ROWS)

    def masked(self, values: tf.Tensor, seeds: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """`values` ([..., n]) with a share `rate` of them zeroed and the rest scaled up; `seeds` are those of [...]."""
        keep = line_bits(seeds, values.shape[-1]) >= tf.constant(self.threshold, tf.uint32)
        return tf.where(keep, values * tf.cast(self.scale, values.dtype), tf.zeros([], values.dtype))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Zeroes a share `rate` of the inputs and scales up the rest, if `training`."""
        if not training or self.rate == 0:
            return inputs
        if len(inputs.shape) == 1:
            return tf.squeeze(self.call(inputs[:, None], training), axis=1)
        return self.masked(inputs, self.seeds(inputs.shape[:-1]))


class KeyedDropout(_Keyed, keras.layers.Dropout):
    """keras.layers.Dropout with bits from the call's key. Made by `key_dropout` only."""


class KeyedStableDropout(_Keyed, keras.layers.Layer):
    """DeBERTa's StableDropout with bits from the call's key. Made by `key_dropout` only."""

    @property
    def rate(self) -> float:
        """The share of elements that become zero."""
        return self.drop_prob
