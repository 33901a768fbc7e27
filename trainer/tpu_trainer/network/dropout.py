"""Dropout as a function of (seed, step, row, layer), independent of the batch and the replica.

A resumed run therefore repeats the killed one, and micro-batches, replicas and recomputed layers use the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.network.random_bits import line_bits, threefry2x32

# For speed, the minimum that passes all statistical tests (Salmon et al., table 2).
_ROUNDS = 13


class DropoutKey(NamedTuple):
    """What determines a step's dropout."""

    key: tuple[tf.Tensor, tf.Tensor]
    """Two uint32 scalars, from random_bits.step_key."""
    row: tf.Tensor
    """int32[B], the rows' ids."""


def threshold(rate: float) -> int:
    """Returns the number below which an element's 32 random bits make it zero."""
    return round(rate * 2**32)


def scale(rate: float) -> float:
    """Returns the factor of the other elements."""
    return 1 / (1 - threshold(rate) / 2**32)


def line_seeds(key: DropoutKey, shape: Sequence[int], place: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the seeds of line_bits: two uint32 arrays of `shape`, whose first axis is rows.

    Args:
        key: The step's.
        shape: Of an array without its last axis.
        place: Number of the place in the network where dropout is applied.
    """
    rows, *lines = shape
    keys = threefry2x32(key.key, (tf.cast(key.row, tf.uint32), tf.cast(place, tf.uint32)))
    keys = tuple(tf.reshape(word, [rows] + [1] * len(lines)) for word in keys)
    line = np.arange(math.prod(lines), dtype=np.uint32).reshape(lines)
    return threefry2x32(keys, (line, 0), rounds=_ROUNDS)


def drop(x: tf.Tensor, rate: float, key: DropoutKey | None, place: tf.Tensor | int) -> tf.Tensor:
    """Returns `x` ([B, …, n]) after dropout; `key` None: `x` itself."""
    if key is None or rate == 0:
        return x
    keep = line_bits(line_seeds(key, x.shape[:-1], place), x.shape[-1]) >= tf.constant(
        threshold(rate), tf.uint32
    )
    return tf.where(keep, x * tf.cast(scale(rate), x.dtype), tf.zeros([], x.dtype))
