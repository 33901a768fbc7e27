"""Dropout keyed by row."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.network.call_context import CallContext, CallValues
from tpu_trainer.network.patches.dropout import key_dropout

KEY = (tf.constant(1, tf.uint32), tf.constant(2, tf.uint32))


@pytest.mark.parametrize("shape", [(200, 1000), (40, 5, 1000), (20, 6, 7, 240), (50, 8, 500)])
def test_rate_and_mean_are_exact_and_all_bits_differ(shape: tuple[int, ...]) -> None:
    rows = 25 if shape[0] == 50 else shape[0]  # the first axis may be rows times heads
    model = keras.Sequential([keras.layers.Dropout(0.25), keras.layers.Dropout(0.25)])
    model.build([None, 1000])
    context = CallContext()
    key_dropout(model, context)
    with context.using(CallValues(dropout_key=KEY, row=tf.range(rows))):
        first, second = (layer(tf.ones(shape), training=True).numpy() for layer in model.layers)
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
    model = keras.Sequential([keras.layers.Dropout(0.5)])
    model.build([None, 3, 10])
    context = CallContext()
    key_dropout(model, context)

    def drop(rows: list[int]) -> np.ndarray:
        with context.using(CallValues(dropout_key=KEY, row=tf.constant(rows))):
            return model.layers[0](tf.ones([len(rows), 3, 10]), training=True).numpy()

    np.testing.assert_array_equal(drop([4, 9, 7, -1])[1:3], drop([9, 7]))
    assert (drop([4])[0] != drop([9])[0]).any()


def test_dropout_needs_a_key_only_in_training() -> None:
    model = keras.Sequential([keras.layers.Dropout(0.5)])
    model.build([None, 2])
    key_dropout(model, CallContext())
    np.testing.assert_array_equal(model.layers[0](tf.ones([2, 2]), training=False), np.ones([2, 2]))
    with pytest.raises(RuntimeError, match="needs a key"):
        model.layers[0](tf.ones([2, 2]), training=True)
