"""The guarantees of training, tested for every model type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.conftest import release_memory
from tests.tpu_trainer.model_types import EVERY_TYPE, dropout_config, small_config
from tests.tpu_trainer.tiny import MAX_LENGTH, sequences
from tpu_trainer.config import (
    DataConfig,
    FitConfig,
    MeshConfig,
    ModelConfig,
    ObjectiveName,
    OptimizerConfig,
    TrainConfig,
)
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.pjrt.sharding import place_variables
from tpu_trainer.devices.pjrt.variable_names import VariableNames
from tpu_trainer.step.task import Task
from tpu_trainer.training.build import build_task

ROWS = 6
STEP = tf.constant(0, tf.int64)


def task_of(objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, **train: Any) -> Task:
    # Dropout everywhere: it must be the same if a step, a micro-batch or a layer is computed again.
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=model_type, config=small_config(model_type) | dropout_config(model_type, 0.2)),
        optimizer=OptimizerConfig(learning_rate=0.01),
        train=TrainConfig(steps=20, **train),
        seed=4,
    )
    return build_task(config, vocabulary=vocabulary, max_length=MAX_LENGTH)


@pytest.fixture(autouse=True)
def released_after_each_test() -> Iterator[None]:
    """Frees each model's graphs."""
    yield
    release_memory()


@pytest.fixture(scope="module")
def batch() -> dict[str, tf.Tensor]:
    """Rows of different lengths, so that micro-batches have different numbers of targets."""
    ids = sequences(ROWS, 5)
    mask = np.ones_like(ids)
    for row, length in ((1, 6), (4, 11)):
        ids[row, length:], mask[row, length:] = 1, 0
    features = {"input_ids": ids, "attention_mask": mask, "row": np.arange(ROWS)}
    return {name: tf.constant(values, tf.int32) for name, values in features.items()}


@pytest.mark.parametrize(("objective", "model_type"), EVERY_TYPE, ids=lambda value: value)
def test_a_resumed_run_and_layers_computed_again_give_the_same(
    objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, batch: dict[str, tf.Tensor]
) -> None:
    # Not compiled: that would take most of the time and reveal nothing more.
    task = task_of(objective, model_type, vocabulary)
    shapes = VariableNames(task.state()).shapes()
    placements = place_variables(shapes, MeshConfig(data=1, model=2))  # rules cover every variable
    assert sum(any(axes) for axes in placements.values()) > len(placements) / 4
    sums, kept_gradients = task.gradients(batch, STEP)
    # A mixture's load-balancing loss is a mean over the tokens of a micro-batch.
    accumulation = 1 if "moe" in model_type else 3
    saving = task_of(objective, model_type, vocabulary, recompute="all", accumulation=accumulation)
    saving_sums, saved = saving.gradients(batch, STEP)
    np.testing.assert_allclose(saving_sums, sums, rtol=1e-5)
    largest = max(np.abs(gradient).max() for gradient in kept_gradients)
    for name, gradient, expected in zip(task.weights, saved, kept_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5 * largest, err_msg=name)

    variables = {**task.weights, **task.optimizer.slots(), "step": task.optimizer.step}

    def train(steps: int) -> list[np.ndarray]:
        for _ in range(steps):
            _, gradients = task.gradients(batch, task.optimizer.step)
            task.optimizer.apply(gradients)
        return [variable.numpy() for variable in variables.values()]

    saved_state = train(2)
    uninterrupted = train(2)
    for variable, value in zip(variables.values(), saved_state, strict=True):
        variable.assign(value)
    for name, value, expected in zip(variables, train(2), uninterrupted, strict=True):
        np.testing.assert_array_equal(value, expected, err_msg=name)


@pytest.mark.parametrize(("objective", "model_type"), EVERY_TYPE, ids=lambda value: value)
def test_a_step_in_mixed_precision_can_be_traced(
    objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, batch: dict[str, tf.Tensor]
) -> None:
    # Finds types that do not fit together.
    task = task_of(objective, model_type, vocabulary, precision="mixed_bfloat16")
    graph = tf.function(task.gradients, autograph=False).get_concrete_function(batch, STEP).graph
    operations = {node.op for node in graph.as_graph_def().node} | {
        node.op for function in graph.as_graph_def().library.function for node in function.node_def
    }
    # Checkpoints have no state of random generators.
    assert not {name for name in operations if "Random" in name or "Rng" in name}
