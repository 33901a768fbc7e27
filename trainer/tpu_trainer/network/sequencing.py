"""Control of the execution order in a compiled program."""

from __future__ import annotations

import tensorflow as tf


def schedule_after(value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `value`, and forces the compiler to schedule its uses after `other`. XLA ignores control dependencies.

    As in tf.recompute_grad, the result is the sum with a 0 that the compiler cannot recognize as constant. The compiler
    therefore also cannot merge computations on the result with the same computations on `value`.
    """
    element = other[(0,) * len(other.shape)]
    return value + tf.cast(tf.where(element == element, 0.0, float("nan")), value.dtype)
