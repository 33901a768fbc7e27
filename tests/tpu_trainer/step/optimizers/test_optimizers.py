"""Each optimizer follows its published formula; a stack of layers is updated like separate layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.step.optimizers import numpy_optimizers
from tests.tpu_trainer.step.optimizers.numpy_optimizers import Update
from tpu_trainer.config import OptimizerConfig, ScheduleConfig
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.step.optimizers.build import build_optimizer, decays
from tpu_trainer.step.optimizers.muon import orthogonalize
from tpu_trainer.step.optimizers.optimizer import Optimizer
from tpu_trainer.step.schedule import Schedule
from tpu_trainer.support.errors import UsageError

STEPS, RATE, DECAY = 20, 0.01, 0.1
SHAPES = {
    "embeddings.tokens.weight": (7, 4),
    "layers.mlp.up.weight": (3, 6, 4),
    "layers.mlp.down.weight": (3, 4, 6),
    "layers.experts.up.weight": (3, 2, 6, 4),
    "layers.mlp.up.bias": (3, 6),
    "final_norm.weight": (4,),
}
HIDDEN = [name for name in SHAPES if name.startswith("layers.") and name.endswith("weight")]
Arrays = dict[str, np.ndarray]


def schedule() -> Schedule:
    return Schedule(ScheduleConfig(name="linear"), peak=RATE, steps=STEPS)


def start_and_gradients() -> tuple[Arrays, list[Arrays]]:
    """Gradients that differ in size from weight to weight, and from update to update."""
    rng = np.random.default_rng(0)
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    scales = {name: 10.0 ** rng.uniform(-3, 1, size=shape) for name, shape in SHAPES.items()}
    gradients = [
        {name: (rng.normal(size=shape) * scales[name]).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(STEPS)
    ]
    for step in (2, 3, 4):  # tokens that do not occur
        gradients[step]["embeddings.tokens.weight"][1:5] = 0
    return start, gradients


def variables_of(values: Arrays) -> dict[str, tf.Variable]:
    return {name: tf.Variable(value, name=name) for name, value in values.items()}


def train(optimizer: Optimizer, weights: dict[str, tf.Variable], gradients: list[Arrays]) -> None:
    apply = tf.function(optimizer.apply, jit_compile=True)
    for arrays in gradients:
        apply([tf.constant(arrays[name]) for name in weights])


def own_parts(name: str, values: np.ndarray) -> np.ndarray:
    """The matrices or vectors that have an optimizer's state of their own, [n, …]."""
    if not name.startswith("layers."):
        return values[None]
    dimensions = 1 if name.endswith("bias") else 2
    return values.reshape(-1, *values.shape[-dimensions:])


CASES: dict[str, tuple[dict[str, float], Callable[[str, float], Update]]] = {
    "adamw": (
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3},
        lambda name, decay: numpy_optimizers.adamw(beta1=0.8, beta2=0.9, epsilon=1e-3, decay=decay),
    ),
    "lion": ({"beta1": 0.8}, lambda name, decay: numpy_optimizers.lion(beta1=0.8, beta2=0.99, decay=decay)),
    "adafactor": ({}, lambda name, decay: numpy_optimizers.adafactor(decay=decay)),
    "muon": (
        {"muon_momentum": 0.9, "muon_learning_rate": 2 * RATE},
        lambda name, decay: (
            _doubled_rate(numpy_optimizers.muon(momentum=0.9, decay=decay))
            if name in HIDDEN
            else numpy_optimizers.adamw(beta1=0.9, beta2=0.999, epsilon=1e-6, decay=decay)
        ),
    ),
}


def _doubled_rate(update: Update) -> Update:
    return lambda value, gradient, number, rate: update(value, gradient, number, 2 * rate)


@pytest.mark.parametrize("optimizer", CASES)
def test_20_updates_of_every_layer_follow_the_formula_in_numpy(optimizer: str) -> None:
    options, rule = CASES[optimizer]
    config = OptimizerConfig(name=optimizer, learning_rate=RATE, weight_decay=DECAY, **options)
    start, gradients = start_and_gradients()
    weights = variables_of(start)
    train(build_optimizer(config, schedule(), weights=weights), weights, gradients)
    for name, weight in weights.items():
        decay = 0.0 if name in ("layers.mlp.up.bias", "final_norm.weight") else DECAY
        actual = own_parts(name, weight.numpy())
        for part, value in enumerate(own_parts(name, start[name].astype(np.float64))):
            update = rule(name, decay)
            for step, arrays in enumerate(gradients):
                gradient = own_parts(name, arrays[name].astype(np.float64))[part]
                value = update(value, gradient, step + 1, RATE * (1 - step / STEPS))
            np.testing.assert_allclose(actual[part], value, rtol=2e-5, atol=2e-5, err_msg=name)


def test_bfloat16_orthogonalizes_almost_like_float32() -> None:
    matrices = np.random.default_rng(0).normal(size=(3, 24, 16)).astype(np.float32)
    exact = orthogonalize(tf.constant(matrices)).numpy()
    singular = np.linalg.svd(exact, compute_uv=False)
    assert 0.6 < singular.min() < singular.max() < 1.25
    rounded = tf.function(partial(orthogonalize, dtype=tf.bfloat16))(tf.constant(matrices)).numpy()
    assert rounded.dtype == np.float32
    assert 0 < np.abs(rounded - exact).max() < 0.03 * np.abs(exact).max()
    np.testing.assert_array_equal(orthogonalize(tf.zeros([2, 3])), 0)


@pytest.mark.parametrize("name", ["adamw", "muon", "adafactor", "lion"])
def test_replicas_stay_equal_and_learn_what_one_learns(name: str) -> None:
    start, gradients = start_and_gradients()
    config = OptimizerConfig(name=name, learning_rate=RATE)
    single = variables_of(start)
    train(build_optimizer(config, schedule(), weights=single), single, gradients[:3])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weights = variables_of(start)
        optimizer = build_optimizer(config, schedule(), weights=weights, precision="float32")
    step = tf.function(lambda gradients: strategy.run(optimizer.apply, args=(gradients,)), autograph=False)
    for arrays in gradients[:3]:
        step([tf.constant(arrays[key]) for key in weights])
    assert int(optimizer.step.numpy()) == 3
    for key, weight in (weights | optimizer.slots()).items():
        copies = [copy.numpy() for copy in strategy.experimental_local_results(weight)]
        np.testing.assert_array_equal(copies[0], copies[1])
        if key in single:
            np.testing.assert_allclose(copies[0], single[key].numpy(), rtol=1e-4, atol=1e-5)


def test_matrices_of_a_layer_decay_and_its_vectors_do_not() -> None:
    assert decays("layers.mlp.up.weight", [12, 64, 16])
    assert decays("embeddings.tokens.weight", [1000, 16])
    assert not decays("layers.mlp_norm.weight", [12, 16])  # a stack of vectors
    assert not decays("layers.mlp.gate.weight", [12, 1, 16])
    assert not decays("final_norm.weight", [16])
    assert not decays("embeddings.tokens.weight", [1000, 16], ["^embeddings"])

    start, _ = start_and_gradients()
    weights = variables_of(start)
    with pytest.raises(UsageError, match=r"--optimizer\.no_decay: 'nowhere' matches no weight's name"):
        build_optimizer(OptimizerConfig(no_decay=["nowhere"]), schedule(), weights=weights)
    config = OptimizerConfig(learning_rate=RATE, weight_decay=0.5, no_decay=["tokens"])
    zeros = {name: np.zeros_like(value) for name, value in start.items()}
    train(build_optimizer(config, schedule(), weights=weights), weights, [zeros])
    for name, weight in weights.items():
        factor = 1 - RATE * 0.5 if name in HIDDEN else 1.0
        np.testing.assert_allclose(weight.numpy(), start[name] * factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "slots", "floats"),
    [
        ("adamw", {"mean", "mean_square"}, 2 * 338),
        ("muon", {"mean", "mean_square"}, 338 + 50),
        ("adafactor", {"row_mean_square", "column_mean_square", "mean_square"}, 153),
        ("lion", {"mean"}, 338),
    ],
)
def test_slots_are_named_by_their_weights_and_can_be_postponed(
    name: str, slots: set[str], floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_trainer.network.initial_values._LEAST_ELEMENTS", 2)
    weights = variables_of({key: np.zeros(shape, np.float32) for key, shape in SHAPES.items()})
    initial = InitialValues(postpone=True)
    optimizer = build_optimizer(
        OptimizerConfig(name=name), schedule(), weights=weights, make_variable=initial.variable
    )
    assert {key.split("/")[0] for key in optimizer.slots()} == slots
    assert {key.split("/")[1] for key in optimizer.slots()} == SHAPES.keys()
    assert sum(slot.shape.num_elements() for slot in optimizer.slots().values()) == floats
    for key, slot in optimizer.slots().items():
        assert slot.name == f"optimizer/{key}:0"
        assert not slot.trainable
        value = initial.value(slot)
        assert value.shape == tuple(slot.shape)
        assert not value.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "lion", "epsilon": 1e-3}, r"optimizer.epsilon is 0.001: it has no effect with --optimizer.name lion"),
        ({"name": "adafactor", "beta2": 0.9}, r"optimizer.beta2 is 0.9: it has no effect"),
        ({"muon_learning_rate": 1.0}, r"optimizer.muon_learning_rate is 1.0: it has no effect"),
        ({"name": "muon", "muon_momentum": 1.0}, r"optimizer.muon_momentum is 1.0: must be in \[0, 1\)"),
    ],
)  # fmt: skip
def test_options_of_other_optimizers_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OptimizerConfig(**options)


def test_null_means_the_optimizers_default() -> None:
    assert OptimizerConfig().resolved() == OptimizerConfig(
        learning_rate=1e-4, beta1=0.9, beta2=0.999, epsilon=1e-6
    )
    assert OptimizerConfig(name="muon", learning_rate=0.5).resolved().muon_learning_rate == 0.5
    lion = OptimizerConfig(name="lion", beta1=0.5).resolved()
    assert (lion.learning_rate, lion.beta1, lion.beta2, lion.epsilon) == (3e-5, 0.5, 0.99, None)
