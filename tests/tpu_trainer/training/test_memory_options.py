"""The effects of accumulation, gradient checkpointing and mixed precision."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.conftest import release_memory
from tests.tpu_trainer.tiny import MAX_LENGTH, sequences
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, ObjectiveName, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.executor import check_batch_size
from tpu_trainer.step.task import Task
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task

ROWS = 12
STEP = tf.constant(3, tf.int64)
# Dropout must be the same in micro-batches and in recomputed layers.
MODELS = {
    "mlm": ModelConfig(
        type="roberta",
        config={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
                "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
    ),
    "clm": ModelConfig(
        type="gpt2", config={"n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.3, "attn_pdrop": 0.2}
    ),
}  # fmt: skip


def task_of(objective: ObjectiveName, vocabulary: Vocabulary, **train: Any) -> Task:
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=MODELS[objective],
        train=TrainConfig(steps=20, batch_size=ROWS, **train),
        seed=4,
    )
    return build_task(config, vocabulary=vocabulary, max_length=MAX_LENGTH)


def batch_of() -> dict[str, tf.Tensor]:
    """Rows of one and of two documents, some padded: micro-batches have different numbers of targets."""
    ids = sequences(ROWS, 5)
    mask = np.ones_like(ids)
    mask[::5, 6:] = 0
    ids[mask == 0] = 1
    segments = np.where((np.arange(ROWS) % 2 == 1)[:, None] & (np.arange(MAX_LENGTH) >= 5), 2, 1) * mask
    features = {"input_ids": ids, "attention_mask": mask, "segment_ids": segments, "row": np.arange(ROWS)}
    return {name: tf.constant(values, tf.int32) for name, values in features.items()}


@pytest.fixture(autouse=True)
def released_graphs() -> Iterator[None]:
    """Frees the graphs of each test."""
    yield
    release_memory()


def gradients(task: Task, *, compiled: bool = False) -> tuple[list[float], list[np.ndarray]]:
    """Returns a step's sums and gradients. To trace or compile a step takes most of the time, and 250 MB with XLA."""
    step = tf.function(task.gradients, jit_compile=True) if compiled else task.gradients
    sums, step_gradients = step(batch_of(), STEP)
    return [float(value) for value in sums], [gradient.numpy() for gradient in step_gradients]


@pytest.fixture(scope="module", params=["mlm", pytest.param("clm", marks=pytest.mark.wide)])
def objective(request: pytest.FixtureRequest) -> ObjectiveName:
    return request.param


@pytest.fixture(scope="module")
def plain_results(objective: ObjectiveName, vocabulary: Vocabulary) -> tuple[list[float], list[np.ndarray]]:
    """Returns sums and gradients of the whole batch, in float32."""
    return gradients(task_of(objective, vocabulary))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"accumulation": 3}, marks=pytest.mark.wide),
        pytest.param({"recompute": "attention"}, marks=pytest.mark.wide),
        {"accumulation": 4, "recompute": "all"},
    ],
    ids=str,
)
def test_options_that_save_memory_change_no_sum_and_no_gradient(
    options: dict[str, Any],
    objective: ObjectiveName,
    vocabulary: Vocabulary,
    plain_results: tuple[list[float], list[np.ndarray]],
) -> None:
    sums, actual = gradients(task_of(objective, vocabulary, **options))
    np.testing.assert_allclose(sums, plain_results[0], rtol=1e-6)
    largest = max(np.abs(gradient).max() for gradient in plain_results[1])
    for gradient, expected in zip(actual, plain_results[1], strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6 * largest)


def products(task: Task) -> int:
    """Matrix products in the program that XLA makes of a step's gradients, after it has removed what is the same."""
    function = tf.function(task.gradients, jit_compile=True)
    program = function.experimental_get_compiler_ir(batch_of(), STEP)(stage="optimized_hlo")
    return len(re.findall(r"= \S+ (?:dot|custom-call)\(", program))


def test_layers_or_their_attention_are_computed_again(vocabulary: Vocabulary) -> None:
    kept = products(task_of("clm", vocabulary))
    # The backward pass is a loop, too: each product counts once, whatever the number of layers. A layer of GPT-2 has
    # eight in its forward pass, of which the last one's result is not needed again.
    assert products(task_of("clm", vocabulary, recompute="all")) - kept == 7
    # One product of attention: queries and keys.
    assert products(task_of("clm", vocabulary, recompute="attention")) - kept == 1


def test_mixed_precision_is_close_and_keeps_weights_and_sums_in_float32(
    objective: ObjectiveName, vocabulary: Vocabulary, plain_results: tuple[list[float], list[np.ndarray]]
) -> None:
    task = task_of(objective, vocabulary, precision="mixed_bfloat16", accumulation=2, recompute="all")
    assert {weight.dtype for weight in task.weights.values()} == {tf.float32}
    sums, actual = gradients(task, compiled=True)  # TensorFlow alone cannot on a CPU
    assert sums[0] == pytest.approx(plain_results[0][0], rel=2e-3)
    assert sums[0] != plain_results[0][0]
    assert sums[2:] == plain_results[0][2:]
    rounded, exact = (np.concatenate([g.ravel() for g in gs]) for gs in (actual, plain_results[1]))
    assert rounded.dtype == np.float32
    assert (rounded @ exact) / np.linalg.norm(rounded) / np.linalg.norm(exact) > 0.999


def test_a_batch_that_cannot_be_divided_is_rejected() -> None:
    check_batch_size(12, 2, "train.batch_size", accumulation=3)
    with pytest.raises(
        UsageError, match=r"--train.batch_size is 12: .* multiple of 8: 2 replicas times .*tion 4"
    ):
        check_batch_size(12, 2, "train.batch_size", accumulation=4)
