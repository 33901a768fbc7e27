"""The guarantees of training, tested for every model type."""

from __future__ import annotations

from collections.abc import Iterator

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
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task

ROWS = 6
# They keep their layers in several lists: `fit` refuses --train.gradient_checkpointing.
WITHOUT_CHECKPOINTING = frozenset(("flaubert", "xlm"))
# transformers' classes combine float32 and bfloat16 tensors: `fit` refuses --train.precision mixed_bfloat16.
WITHOUT_MIXED_PRECISION = frozenset(("ctrl", "mistral"))
STEP = tf.constant(0, tf.int64)


def task_of(objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, train: TrainConfig) -> Task:
    # Dropout everywhere: it must be the same if a step, a micro-batch or a block is recomputed.
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(
            type=model_type,
            config=small_config(model_type) | dropout_config(model_type, 0.2) | {"num_hidden_layers": 1},
        ),
        optimizer=OptimizerConfig(learning_rate=0.01),
        train=train,
        seed=4,
    )
    return build_task(config, vocabulary=vocabulary, max_length=MAX_LENGTH)


@pytest.fixture(autouse=True)
def released_after_each_test() -> Iterator[None]:
    """Frees each model's graphs: those of all types together take 5 GB."""
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
def test_a_resumed_run_and_blocks_computed_again_give_the_same(
    objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, batch: dict[str, tf.Tensor]
) -> None:
    # Not compiled: that would take most of the time and reveal nothing more.
    task = task_of(objective, model_type, vocabulary, TrainConfig(steps=20))
    shapes = VariableNames(task.state()).shapes()
    placements = place_variables(shapes, MeshConfig(model=2), data=1)  # rules cover every variable
    assert sum(any(axes) for axes in placements.values()) > len(placements) / 4
    sums, kept_gradients = task.gradients(batch, STEP)
    checkpointing = model_type not in WITHOUT_CHECKPOINTING
    saving = task_of(
        objective,
        model_type,
        vocabulary,
        TrainConfig(steps=20, gradient_checkpointing=checkpointing, accumulation=3),
    )
    saving_sums, saved = saving.gradients(batch, STEP)
    np.testing.assert_allclose(saving_sums, sums, rtol=1e-5)
    largest = max(np.abs(gradient).max() for gradient in kept_gradients)
    for variable, gradient, expected in zip(
        task.network.trainable_variables, saved, kept_gradients, strict=True
    ):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5 * largest, err_msg=variable.name)

    variables = [*task.network.weights, *task.optimizer.variables]

    def train(steps: int) -> list[np.ndarray]:
        for _ in range(steps):
            _, gradients = task.gradients(batch, task.optimizer.iterations)
            task.optimizer.apply_gradients(zip(gradients, task.network.trainable_variables, strict=True))
        return [variable.numpy() for variable in variables]

    saved_state = train(2)
    uninterrupted = train(2)
    for variable, value in zip(variables, saved_state, strict=True):
        variable.assign(value)
    for variable, value, expected in zip(variables, train(2), uninterrupted, strict=True):
        np.testing.assert_array_equal(value, expected, err_msg=variable.name)


@pytest.mark.parametrize("model_type", sorted(WITHOUT_CHECKPOINTING))
def test_checkpointing_is_refused_for_models_whose_layers_are_not_known(
    model_type: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(UsageError, match=r"--train.gradient_checkpointing: not supported for models"):
        task_of("mlm", model_type, vocabulary, TrainConfig(steps=20, gradient_checkpointing=True))


@pytest.mark.parametrize("model_type", sorted(WITHOUT_MIXED_PRECISION))
def test_mixed_precision_is_refused_for_models_that_fail_in_it(
    model_type: str, vocabulary: Vocabulary
) -> None:
    with pytest.raises(
        UsageError, match=rf"--train.precision is 'mixed_bfloat16': .*{model_type}.*; use float32"
    ):
        task_of("clm", model_type, vocabulary, TrainConfig(steps=20, precision="mixed_bfloat16"))


@pytest.mark.parametrize(("objective", "model_type"), EVERY_TYPE, ids=lambda value: value)
def test_a_step_can_be_traced_and_draws_nothing_from_a_state(
    objective: ObjectiveName, model_type: str, vocabulary: Vocabulary, batch: dict[str, tf.Tensor]
) -> None:
    # Uses mixed precision if the type supports it: tracing a step finds types that do not fit together, too.
    precision = "float32" if model_type in WITHOUT_MIXED_PRECISION else "mixed_bfloat16"
    task = task_of(objective, model_type, vocabulary, TrainConfig(steps=20, precision=precision))
    tf.function(task.gradients, autograph=False).get_concrete_function(batch, STEP)


def test_a_layer_that_draws_from_a_state_is_refused_by_name(
    vocabulary: Vocabulary, batch: dict[str, tf.Tensor]
) -> None:
    task = task_of("mlm", "distilbert", vocabulary, TrainConfig(steps=20, accumulation=2))
    layer = task.network.distilbert.transformer.layer[0].ffn
    original = layer.call
    layer.call = lambda x, training=False: tf.nn.dropout(original(x, training=training), 0.1)
    with pytest.raises(
        RuntimeError,
        match=r"from a state that is not in checkpoints: \S*ffn/\S*random_uniform\S* \(RandomUniform\)",
    ):
        tf.function(task.gradients, autograph=False).get_concrete_function(batch, STEP)
