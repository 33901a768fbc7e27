"""Dropout as a function of (seed, step, row, layer), independent of the batch and the replica.

A resumed run therefore repeats the killed one, and micro-batches, replicas and recomputed layers use the same bits.
Keras' dropout draws from a generator whose state is not in checkpoints.
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

# For speed, the minimum that passes all statistical tests (Salmon et al., table 2).
_ROUNDS = 13
# DeBERTa's layers for the embeddings of relative positions, which all rows of a batch share.
_SHARED_BY_ROWS = frozenset(("pos_dropout",))


def line_seeds(
    values: CallValues, shape: Sequence[int], layer: int, *, shared: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the seeds of line_bits for one layer: two uint32 arrays of `shape`.

    Args:
        values: The call's key and row ids.
        shape: The first axis is rows, or a multiple of rows.
        layer: Number of the layer.
        shared: Whether all rows share the seeds, so that `shape` has no axis of rows.
    """
    if values.dropout_key is None or values.row is None:
        raise RuntimeError("dropout in training needs a key and the rows' ids: see CallContext")
    if shared:
        seeds = line_seeds(replace(values, row=tf.zeros([1], tf.int32)), [1, *shape], layer)
        return seeds[0][0], seeds[1][0]
    batch, *lines = shape
    repeats, remainder = divmod(batch, values.row.shape[0])
    if remainder:
        raise RuntimeError(
            f"dropout of an array with a first axis of {batch}, not a multiple of the {values.row.shape[0]} rows"
        )
    lane = np.arange(batch, dtype=np.uint32) % repeats
    row = tf.repeat(tf.cast(values.row, tf.uint32), repeats)
    keys = tuple(
        tf.reshape(key, [batch] + [1] * len(lines))
        for key in threefry2x32(values.dropout_key, (row, lane << 16 | np.uint32(layer)))
    )
    line = np.arange(math.prod(lines), dtype=np.uint32).reshape(lines)
    return threefry2x32(keys, (line, 0), rounds=_ROUNDS)


class _KeyedDropoutBase:
    """Mixin for dropout layers that derive their bits from the call's key instead of a generator."""

    context: CallContext
    index: int
    rate: float

    @property
    def threshold(self) -> int:
        """Elements with 32 random bits below this value become zero."""
        return round(self.rate * 2**32)

    @property
    def scale(self) -> float:
        """Factor of the other elements."""
        return 1 / (1 - self.threshold / 2**32)

    def seeds(self, shape: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the seeds of this layer's mask; `shape` is the input's shape without its last axis."""
        return line_seeds(self.context.values, shape, self.index, shared=self.name in _SHARED_BY_ROWS)

    def masked(self, values: tf.Tensor, seeds: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Returns `values` ([..., n]) after dropout with `seeds` ([...])."""
        keep = line_bits(seeds, values.shape[-1]) >= tf.constant(self.threshold, tf.uint32)
        return tf.where(keep, values * tf.cast(self.scale, values.dtype), tf.zeros([], values.dtype))

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Applies dropout if `training`."""
        if not training or self.rate == 0:
            return inputs
        if len(inputs.shape) == 1:
            return tf.squeeze(self.call(inputs[:, None], training), axis=1)
        return self.masked(inputs, self.seeds(inputs.shape[:-1]))


class KeyedDropout(_KeyedDropoutBase, keras.layers.Dropout):
    """keras.layers.Dropout with bits from the call's key. Only `key_dropout` creates it."""


class KeyedStableDropout(_KeyedDropoutBase, keras.layers.Layer):
    """DeBERTa's StableDropout with bits from the call's key. Only `key_dropout` creates it."""

    @property
    def rate(self) -> float:
        """The fraction of elements that become zero."""
        return self.drop_prob
