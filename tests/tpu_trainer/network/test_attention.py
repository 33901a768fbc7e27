"""Attention: what a query sees, and its gradient, compared with plain operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.network.attention import ProbabilitiesDropout, Visibility, attend
from tpu_trainer.network.dropout import DropoutKey, drop
from tpu_trainer.network.stack import Kept

ROWS, LENGTH, HEADS, GROUPS, SIZE = 2, 7, 4, 2, 3
KEY = DropoutKey((tf.constant(1, tf.uint32), tf.constant(2, tf.uint32)), tf.range(ROWS))
SEGMENTS = np.array([[0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, -1, -1]], np.int32)


def visible(causal: bool, window: int | None, segments: np.ndarray | None) -> np.ndarray:
    """bool[B, L, L], query by query."""
    result = np.ones((ROWS, LENGTH, LENGTH), bool)
    for row in range(ROWS):
        for query in range(LENGTH):
            for key in range(LENGTH):
                result[row, query, key] = (
                    not (causal and key > query)
                    and (window is None or abs(query - key) < window)
                    and (segments is None or segments[row, query] == segments[row, key])
                )
    return result


@pytest.mark.parametrize(
    ("visibility", "soft_cap", "rate"),
    [
        (Visibility(causal=True), None, 0.0),
        (Visibility(causal=False, window=3), 2.0, 0.0),
        (Visibility(causal=True, window=2, segments=tf.constant(SEGMENTS)), None, 0.4),
    ],
)
def test_attend_equals_plain_operations(visibility: Visibility, soft_cap: float | None, rate: float) -> None:
    rng = np.random.default_rng(1)
    inputs = [
        tf.constant(rng.normal(size=(ROWS, LENGTH, heads, SIZE)), tf.float32)
        for heads in (HEADS, GROUPS, GROUPS)
    ]
    d_output = tf.constant(rng.normal(size=(ROWS, LENGTH, HEADS, SIZE)), tf.float32)
    dropout = ProbabilitiesDropout(rate, KEY, 5)
    segments = None if visibility.segments is None else SEGMENTS
    mask = visible(visibility.causal, visibility.window, segments)[:, None]

    def plain(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        key, value = (tf.repeat(x, HEADS // GROUPS, axis=2) for x in (key, value))
        scores = tf.einsum("blhd,bmhd->bhlm", query, key) * 0.7
        if soft_cap is not None:
            scores = soft_cap * tf.tanh(scores / soft_cap)
        probabilities = drop(tf.nn.softmax(tf.where(mask, scores, -1e9)), *dropout)
        return tf.einsum("bhlm,bmhd->blhd", probabilities, value)

    def ours(*inputs: tf.Tensor) -> tf.Tensor:
        return attend(
            *inputs, visibility=visibility, scale=0.7, soft_cap=soft_cap, kept=Kept(()), dropout=dropout
        )

    results = []
    for function in (plain, ours):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = function(*inputs)
        results.append([output, *tape.gradient(output, inputs, output_gradients=d_output)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=1e-5)


def test_in_bfloat16_the_softmax_is_computed_in_float32() -> None:
    inputs = tf.ones([1, 4, 2, 8], tf.bfloat16)

    def attention(x: tf.Tensor) -> Any:
        return attend(
            x,
            x,
            x,
            visibility=Visibility(causal=True),
            scale=0.5,
            soft_cap=None,
            kept=Kept(()),
            dropout=ProbabilitiesDropout(0.0, None, 0),
        )

    graph = tf.function(attention, autograph=False).get_concrete_function(inputs).graph
    types = {operation.inputs[0].dtype for operation in graph.get_operations() if operation.type == "Softmax"}
    assert types == {tf.float32}
    assert attention(inputs).dtype == tf.bfloat16
