"""Control of the execution order in a compiled program."""

from __future__ import annotations

import tensorflow as tf


def schedule_after(value: tf.Tensor, other: tf.Tensor, *, shared: int = 0) -> tf.Tensor:
    """Returns `value`, and forces the compiler to schedule its uses after `other`. XLA ignores control dependencies.

    The result is the sum with a 0 that the compiler cannot recognize as constant, since a floating-point number may not
    equal itself. (tf.recompute_grad compares booleans, which the TPU compiler simplifies.) The compiler therefore also
    cannot merge computations on the result with the same computations on `value`.

    Args:
        value: Floating-point numbers.
        other: Floating-point numbers, not empty.
        shared: How many leading dimensions the two share. Each index of these depends only on `other` at the same
            index. Devices that divide these dimensions then exchange nothing.
    """
    element = other[(slice(None),) * shared + (0,) * (len(other.shape) - shared)]
    element = tf.reshape(element, tf.concat([tf.shape(element), [1] * (len(value.shape) - shared)], 0))
    return value + tf.cast(tf.where(element == element, 0.0, float("nan")), value.dtype)
