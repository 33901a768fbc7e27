"""The windows of order.py as a tf.data pipeline of TensorFlow operations.

It contains no Python functions: those run only in the process that built the pipeline, but on a TPU slice each host
runs its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.data.order import Arrays, Order, Window, host_shards

# Philox4x64-10, as in NumPy (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
_MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], np.uint64)
_ROUNDS = 10
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def philox_raw(n: tf.Tensor, key: tuple[Any, Any]) -> tf.Tensor:
    """Returns the same as np.random.Philox(key=key).random_raw(n), uint64[n]."""
    blocks = (n + 3) // 4
    # Words 0 and 2, and words 1 and 3, of each block's counter. NumPy increments the counter before it draws.
    numbers = tf.cast(tf.range(1, blocks + 1), tf.uint64)
    even = tf.stack([numbers, tf.zeros_like(numbers)])
    odd = tf.zeros_like(even)

    def one_round(
        number: tf.Tensor, keys: tf.Tensor, even: tf.Tensor, odd: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        high, low = _product(_MULTIPLIERS, even)
        even = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(high[::-1], odd), keys)
        return number + 1, keys + _KEY_STEPS, even, low[::-1]

    keys = tf.stack([tf.cast(word, tf.uint64) for word in key])[:, tf.newaxis]
    *_, even, odd = tf.while_loop(
        lambda number, *_: number < _ROUNDS, one_round, (tf.constant(0), keys, even, odd)
    )
    return tf.reshape(tf.stack([even[0], odd[0], even[1], odd[1]], axis=1), [-1])[:n]


def _halves(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.bitwise.right_shift(value, _HALF), tf.bitwise.bitwise_and(value, _LOW_HALF)


def _product(a: np.ndarray, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the upper and lower 64 bits of a * b."""
    a_high, a_low = a >> _HALF, a & _LOW_HALF
    b_high, b_low = _halves(b)
    carry, _ = _halves(a_low * b_low)
    first_high, first_low = _halves(a_low * b_high)
    second_high, second_low = _halves(a_high * b_low)
    middle, _ = _halves(carry + first_low + second_low)
    return a_high * b_high + first_high + second_high + middle, a * b


def _permutation(n: Any, key: tuple[Any, Any]) -> tf.Tensor:
    return tf.cast(tf.argsort(philox_raw(tf.cast(n, tf.int64), key), stable=True), tf.int64)


TENSORS = Arrays(xp=tf.experimental.numpy, permutation=_permutation, select=tf.boolean_mask)


def shuffled_windows(order: Order, position: int) -> tf.data.Dataset:
    """Returns the infinite stream of windows of `order.windows(position)`."""
    place = order.locate(position)

    @tf.autograph.experimental.do_not_convert
    def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        pieces = tf.data.Dataset.from_tensor_slices(order.pieces(epoch, TENSORS)).batch(order.window_shards)
        return pieces.enumerate().map(
            tf.autograph.experimental.do_not_convert(lambda index, pieces: (epoch, index, pieces))
        )

    @tf.autograph.experimental.do_not_convert
    def window(number: tf.Tensor, planned: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> Window:
        epoch, index, pieces = planned
        offset = tf.where(number == 0, tf.constant(place.offset, tf.int64), tf.constant(0, tf.int64))
        return order.window(pieces, epoch=epoch, index=index, offset=offset, arrays=TENSORS)

    epochs = tf.data.Dataset.counter(place.epoch)
    return epochs.flat_map(of_epoch).skip(place.window).enumerate().map(window)


def windows_in_sequence(counts: np.ndarray, *, host: int, hosts: int) -> tf.data.Dataset:
    """Returns each row of a host's share once, in the split's order, for evaluation. Each window is one shard."""
    shards = host_shards(counts, host=host, hosts=hosts)
    starts = (np.cumsum(counts) - counts)[shards]

    @tf.autograph.experimental.do_not_convert
    def window(shard: tf.Tensor, start: tf.Tensor, count: tf.Tensor) -> Window:
        rows = tf.range(count)
        return Window(shards=shard[tf.newaxis], rows=rows, row_ids=start + rows)

    return tf.data.Dataset.from_tensor_slices((shards, starts, counts[shards])).map(window)
