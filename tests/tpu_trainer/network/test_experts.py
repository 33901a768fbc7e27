"""A mixture of experts computes for each token the experts that it chooses, however many choose the same."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.network import division
from tpu_trainer.network.architecture import Mlp
from tpu_trainer.network.division import Division
from tpu_trainer.network.experts import balance_loss, mixture
from tpu_trainer.network.stack import Kept

EXPERTS, CHOSEN, WIDTH, SIZE = 8, 2, 6, 5
SHAPE = Mlp(
    size=SIZE,
    activation="silu",
    gated=True,
    experts=EXPERTS,
    chosen_experts=CHOSEN,
    normalize_choice=True,
)


def random_case(*, preferred: float) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns positive tokens, [4, 10, WIDTH], and weights of a router that prefers the first experts."""
    random = np.random.default_rng(0)
    shapes = {
        "mlp.router.weight": (EXPERTS, WIDTH),
        "mlp.gate.weight": (EXPERTS, SIZE, WIDTH),
        "mlp.up.weight": (EXPERTS, SIZE, WIDTH),
        "mlp.down.weight": (EXPERTS, WIDTH, SIZE),
    }
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    weights["mlp.router.weight"][:CHOSEN] += preferred
    tokens = random.uniform(0.5, 1.5, (4, 10, WIDTH)).astype(np.float32)
    return tf.constant(tokens), {name: tf.constant(value) for name, value in weights.items()}


def all_experts(x: tf.Tensor, weights: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns what `mixture` does, by computing every expert for every token."""
    probabilities = tf.nn.softmax(tf.einsum("blh,eh->ble", x, weights["mlp.router.weight"]))
    least = tf.sort(probabilities)[..., -CHOSEN, None]
    shares = tf.where(probabilities >= least, probabilities, 0.0)
    shares /= tf.reduce_sum(shares, axis=-1, keepdims=True)
    gate = tf.nn.silu(tf.einsum("blh,eih->blei", x, weights["mlp.gate.weight"]))
    between = gate * tf.einsum("blh,eih->blei", x, weights["mlp.up.weight"])
    return tf.einsum("blei,ehi,ble->blh", between, weights["mlp.down.weight"], shares)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("preferred", [0.0, 5.0])
def test_outputs_and_gradients_are_those_of_computing_all_experts(
    preferred: float, groups: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "place", lambda x, axes: x)  # one device has all groups
    x, weights = random_case(preferred=preferred)
    direction = tf.constant(np.random.default_rng(1).normal(size=x.shape).astype(np.float32))

    def with_gradients(compute: str) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch([x, weights])
            if compute == "all":
                output = all_experts(x, weights)
            else:
                output, _ = mixture(x, SHAPE, weights, kept=Kept(()), division=Division(data=groups))
            total = tf.reduce_sum(output * direction)
        return output, tape.gradient(total, [x, *weights.values()])

    expected, expected_gradients = with_gradients("all")
    run = tf.function(with_gradients, jit_compile=True) if compiled else with_gradients
    output, gradients = run("chosen")
    np.testing.assert_allclose(output, expected, atol=1e-5)
    for value, gradient in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(value, gradient, atol=1e-5 * np.ptp(gradient))


def test_the_balance_loss_is_least_if_all_experts_get_as_many_tokens() -> None:
    even = tf.constant([[CHOSEN / EXPERTS] * EXPERTS, [1 / EXPERTS] * EXPERTS])
    x, weights = random_case(preferred=5.0)
    _, means = mixture(x, SHAPE, weights, kept=Kept(()))
    assert balance_loss(even).numpy() == pytest.approx(CHOSEN)
    # All tokens choose the first experts.
    np.testing.assert_allclose(means[0], [1.0] * CHOSEN + [0.0] * (EXPERTS - CHOSEN), atol=1e-6)
    assert balance_loss(means).numpy() > 3 * CHOSEN


def test_padding_does_not_count_for_the_balance() -> None:
    x, weights = random_case(preferred=0.0)
    real = tf.constant([[True] * 10, [True] * 10, [False] * 10, [False] * 10])
    _, means = mixture(x, SHAPE, weights, kept=Kept(()), real=real)
    _, expected = mixture(x[:2], SHAPE, weights, kept=Kept(()))
    np.testing.assert_allclose(means, expected, atol=1e-6)
