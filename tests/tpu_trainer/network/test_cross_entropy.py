"""The loss in chunks, compared with the formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.product_flops import product_flops
from tpu_trainer.network.cross_entropy import OutputWeights, cross_entropy_sums

COUNT, HIDDEN, IDS, SIZE = 36, 12, 72, 50


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    matrix, targets = rng.normal(size=(IDS, HIDDEN)), rng.integers(0, SIZE, size=COUNT)
    return {
        "hidden": rng.normal(size=(COUNT, HIDDEN))
        + 0.3 * matrix[targets],  # some targets are predicted right
        "matrix": matrix,
        "bias": rng.normal(size=IDS) + 10.0 * (np.arange(IDS) >= SIZE),  # ids that must not be predicted
        "targets": targets,
        "weights": (rng.random(COUNT) < 0.7).astype(np.float64),
    }


def rounded(values: np.ndarray) -> np.ndarray:
    """Rounds values to bfloat16 and returns them as float64."""
    return tf.cast(tf.cast(tf.cast(values, tf.float32), tf.bfloat16), tf.float64).numpy()


def expected(
    a: dict[str, np.ndarray],
    *,
    round_logits: bool = False,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
) -> tuple[float, float, list[np.ndarray]]:
    """Computes loss, correct predictions and gradients by the formulas."""
    logits = (a["hidden"] @ a["matrix"].T + a["bias"])[:, :SIZE]
    logits = rounded(logits) if round_logits else logits
    slope = np.ones_like(logits)
    if soft_cap is not None:
        logits = soft_cap * np.tanh(logits / soft_cap)
        slope = 1 - (logits / soft_cap) ** 2
    z = np.exp(logits).sum(axis=1, keepdims=True)
    probabilities = np.exp(logits) / z
    loss = -(np.log(probabilities[np.arange(COUNT), a["targets"]]) * a["weights"]).sum()
    highest = logits == logits.max(axis=1, keepdims=True)
    hits = (highest[np.arange(COUNT), a["targets"]] / highest.sum(axis=1) * a["weights"]).sum()
    d_logits = np.zeros((COUNT, IDS))
    d_losses = probabilities - np.eye(SIZE)[a["targets"]] + z_loss * 2 * np.log(z) * probabilities
    d_logits[:, :SIZE] = d_losses * slope * a["weights"][:, None]
    return loss, hits, [d_logits @ a["matrix"], d_logits.T @ a["hidden"], d_logits.sum(axis=0)]


def actual(
    a: dict[str, np.ndarray],
    *,
    pieces: int,
    shards: int = 1,
    dtype: tf.DType = tf.float32,
    training: bool = True,
    compiled: bool = True,
    soft_cap: float | None = None,
    z_loss: float = 0.0,
) -> tuple[float, float, list[np.ndarray]]:
    def call(
        hidden_states: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([hidden_states, matrix, bias])
            loss, hits = cross_entropy_sums(
                hidden=tf.cast(hidden_states, dtype),
                output=OutputWeights(matrix, bias, soft_cap),
                targets=tf.constant(a["targets"], tf.int32),
                weights=tf.constant(a["weights"], tf.float32),
                size=SIZE,
                training=training,
                z_loss=z_loss,
                max_logits=COUNT * IDS // shards // pieces,
                shards=shards,
            )
            doubled = 2 * loss  # so that the factor from outside counts
        return loss, hits, tape.gradient(doubled, [hidden_states, matrix, bias]) if training else []

    function = tf.function(call, jit_compile=True) if compiled else call
    loss, hits, gradients = function(*(tf.constant(a[n], tf.float32) for n in ("hidden", "matrix", "bias")))
    return float(loss), float(hits), [gradient.numpy() / 2 for gradient in gradients]


@pytest.mark.parametrize(
    ("pieces", "shards", "compiled"),
    [(1, 1, True), (3, 1, True), (5, 1, False), (2, 2, False), (1, 9, False)],
)
def test_sums_and_gradients_equal_the_formulas(pieces: int, shards: int, compiled: bool) -> None:
    a = arrays()
    loss, hits, gradients = expected(a)
    found_loss, found_hits, actual_gradients = actual(a, pieces=pieces, shards=shards, compiled=compiled)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found_hits == hits > 0
    for gradient, reference in zip(actual_gradients, gradients, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("soft_cap", "z_loss", "dtype", "compiled"),
    [(None, 0.1, tf.float32, False), (3.0, 0.0, tf.float32, True), (3.0, 0.1, tf.bfloat16, True)],
)
def test_the_soft_cap_and_the_z_loss_follow_the_formulas(
    soft_cap: float | None, z_loss: float, dtype: tf.DType, compiled: bool
) -> None:
    a = arrays()
    if dtype == tf.bfloat16:
        for name in ("hidden", "matrix", "bias"):
            a[name] = np.round(a[name] * 2) / 2
    options = {"soft_cap": soft_cap, "z_loss": z_loss}
    loss, hits, gradients = expected(a, round_logits=dtype == tf.bfloat16, **options)
    actual_loss, actual_hits, actual_gradients = actual(
        a, pieces=3, dtype=dtype, compiled=compiled, **options
    )
    assert actual_loss == pytest.approx(loss, rel=1e-5)
    assert actual_hits == pytest.approx(hits)
    for gradient, reference in zip(actual_gradients, gradients, strict=True):
        tolerance = 1e-5 if dtype == tf.float32 else 0.02
        np.testing.assert_allclose(gradient, reference, rtol=0, atol=tolerance * np.abs(reference).max())


def test_an_evaluation_in_bfloat16_rounds_only_the_factors() -> None:
    a = arrays()
    for name in ("hidden", "matrix"):
        a[name] = rounded(a[name])
    loss, hits, _ = expected(a)
    found_loss, found_hits, _ = actual(a, pieces=2, dtype=tf.bfloat16, training=False)
    # Rounding logits to bfloat16 would cause relative errors of up to 2**-8.
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found_hits == hits


@pytest.mark.parametrize("pieces", [1, 3])
def test_an_evaluation_computes_no_gradient(pieces: int) -> None:
    def call(hidden: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return cross_entropy_sums(
            hidden=hidden,
            output=OutputWeights(matrix, bias),
            targets=tf.zeros([COUNT], tf.int32),
            weights=tf.ones([COUNT]),
            size=SIZE,
            training=False,
            max_logits=COUNT * IDS // pieces,
        )

    specs = [tf.TensorSpec(shape) for shape in ([COUNT, HIDDEN], [IDS, HIDDEN], [IDS])]
    graph = tf.function(call).get_concrete_function(*specs).graph
    chunk = {1: COUNT, 3: 16}[pieces]  # rounded up to 8 positions
    assert product_flops(graph) == 2 * chunk * pieces * HIDDEN * IDS


@pytest.mark.parametrize("compiled", [True, False])
def test_training_in_bfloat16_uses_the_same_rounded_logits_everywhere(compiled: bool) -> None:
    a = arrays()
    # Products and sums of halves are exact, so the reference rounds the same numbers.
    for name in ("hidden", "matrix", "bias"):
        a[name] = np.round(a[name] * 2) / 2
    a["matrix"][::3] *= 17  # logits beyond the 8 bits of a bfloat16
    loss, hits, gradients = expected(a, round_logits=True)
    exact_loss, exact_hits, _ = expected(a)
    assert (exact_loss, exact_hits) != (pytest.approx(loss, rel=1e-4), hits)  # the rounding shows
    found_loss, found_hits, actual_gradients = actual(a, pieces=2, dtype=tf.bfloat16, compiled=compiled)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert found_hits == pytest.approx(hits)
    for gradient, reference in zip(actual_gradients, gradients, strict=True):
        np.testing.assert_allclose(gradient, reference, atol=0.02 * np.abs(reference).max())


def test_a_target_tied_for_the_highest_logit_counts_as_a_fraction() -> None:
    a = arrays()
    a["hidden"][:], a["bias"][:] = 0.0, 0.0  # all logits are the same
    _, hits, _ = actual(a, pieces=3)
    assert hits == pytest.approx(a["weights"].sum() / SIZE)


def test_no_array_of_all_logits_is_created() -> None:
    def lowered_text(pieces: int) -> str:
        @tf.function(jit_compile=True)
        def call(hidden: tf.Tensor, matrix: tf.Tensor, bias: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(hidden)
                loss, _ = cross_entropy_sums(
                    hidden=hidden,
                    output=OutputWeights(matrix, bias),
                    targets=tf.zeros([64], tf.int32),
                    weights=tf.ones([64]),
                    size=SIZE,
                    training=True,
                    max_logits=64 * IDS // pieces,
                )
            return tape.gradient(loss, [hidden])

        specs = [tf.TensorSpec(shape) for shape in ([64, HIDDEN], [IDS, HIDDEN], [IDS])]
        return call.experimental_get_compiler_ir(*specs)(stage="hlo")

    all_logits = f"f32[64,{IDS}]"
    assert all_logits in lowered_text(1)
    assert all_logits not in lowered_text(4)
    assert f"f32[16,{IDS}]" in lowered_text(4)
