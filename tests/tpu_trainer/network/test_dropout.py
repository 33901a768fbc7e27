"""Dropout keyed by row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.network.dropout import DropoutKey, drop

KEY = (tf.constant(1, tf.uint32), tf.constant(2, tf.uint32))


@pytest.mark.parametrize("shape", [(200, 1000), (40, 5, 1000), (20, 6, 7, 240)])
def test_rate_and_mean_are_exact_and_all_bits_differ(shape: tuple[int, ...]) -> None:
    key = DropoutKey(KEY, tf.range(shape[0]))
    first, second = (drop(tf.ones(shape), 0.25, key, place).numpy() for place in (1, 2))
    assert set(np.unique(first)) == {0.0, np.float32(1 / 0.75)}
    is_dropped = first.reshape(shape[0], -1) == 0
    deviation = np.sqrt(0.25 * 0.75 / is_dropped.size)
    assert abs(is_dropped.mean() - 0.25) < 5 * deviation
    assert abs((is_dropped & (second == 0).reshape(is_dropped.shape)).mean() - 0.0625) < 5 * deviation
    # Neighbours along each axis, and distant elements, are independent.
    for shift in (1, 2, shape[-1] % is_dropped.shape[1] or 3, is_dropped.shape[1] // 2):
        both_dropped = is_dropped & np.roll(is_dropped, shift, axis=1)
        assert abs(both_dropped.mean() - 0.0625) < 6 * deviation
    assert abs((is_dropped & np.roll(is_dropped, 1, axis=0)).mean() - 0.0625) < 6 * deviation


def test_a_rows_bits_do_not_depend_on_its_batch() -> None:
    def bits(rows: list[int]) -> np.ndarray:
        return drop(tf.ones([len(rows), 3, 10]), 0.5, DropoutKey(KEY, tf.constant(rows)), 0).numpy()

    np.testing.assert_array_equal(bits([4, 9, 7, -1])[1:3], bits([9, 7]))
    assert (bits([4])[0] != bits([9])[0]).any()


def test_without_a_key_or_a_rate_nothing_is_dropped() -> None:
    ones = tf.ones([2, 2])
    assert drop(ones, 0.5, None, 0) is ones
    assert drop(ones, 0.0, DropoutKey(KEY, tf.range(2)), 0) is ones
