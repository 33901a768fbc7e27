"""The loss and gradient of the train step, which do not depend on how a batch is divided."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.tiny import MAX_LENGTH, sequences
from tpu_trainer.config import DataConfig, FitConfig, MlmConfig, ModelConfig, OptimizerConfig, TrainConfig
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor, replica_step
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.objectives import BatchSums
from tpu_trainer.network.random_bits import step_key
from tpu_trainer.network.transformer import Inputs
from tpu_trainer.step.results import RunningSums
from tpu_trainer.step.task import Task
from tpu_trainer.training.build import build_task
from tpu_trainer.training.evaluation import Evaluator

NETWORK = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def config_of(**network: Any) -> FitConfig:
    return FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        model=ModelConfig(type="roberta", config=NETWORK | network),
        mlm=MlmConfig(probability=0.3),
        optimizer=OptimizerConfig(learning_rate=0.01),
        train=TrainConfig(steps=20, batch_size=12),
        seed=4,
    )


def task_of(vocabulary: Vocabulary, config: FitConfig | None = None, strategy: Any = None) -> Task:
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        return build_task(
            config or config_of(),
            vocabulary=vocabulary,
            max_length=MAX_LENGTH,
            target=Target(compile_gradients=strategy.num_replicas_in_sync > 1),
        )


def batch_of(count: int, seed: int = 5) -> dict[str, tf.Tensor]:
    rows = sequences(count, seed)
    mask = np.ones_like(rows)
    mask[::3, 6:] = 0  # rows with different numbers of targets
    rows[mask == 0] = 1
    return {
        "input_ids": tf.constant(rows, tf.int32),
        "attention_mask": tf.constant(mask, tf.int32),
        "row": tf.range(count, dtype=tf.int32),
    }


def numpy_sums(task: Task, vocabulary: Vocabulary, batch: dict[str, tf.Tensor], step: int) -> BatchSums:
    """Computes the step's sums from the whole model's logits, in float64."""
    masking = Masking(vocabulary=vocabulary, max_length=MAX_LENGTH, probability=0.3)
    masked = masking(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        row=batch["row"],
        key=step_key(4, 0, tf.constant(step)),
    )
    inputs = Inputs(masked.input_ids, batch["attention_mask"])
    logits = task.objective.model.logits_at(inputs).numpy()[..., :50].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = hits = targets = 0.0
    for row, (positions, expected, weights) in enumerate(
        zip(masked.positions.numpy(), masked.targets.numpy(), masked.weights.numpy(), strict=True)
    ):
        for position, target, weight in zip(positions, expected, weights, strict=True):
            if weight:
                loss -= log_probabilities[row, position, target]
                hits += int(log_probabilities[row, position].argmax() == target)
                targets += 1
    return BatchSums(loss, hits, targets, float(batch["attention_mask"].numpy().sum()))


def test_sums_are_those_of_plain_numpy(vocabulary: Vocabulary) -> None:
    task = task_of(vocabulary)
    batch = batch_of(12)
    sums, _ = tf.function(task.gradients, jit_compile=True)(batch, tf.constant(7, tf.int64))
    expected = numpy_sums(task, vocabulary, batch, 7)
    assert int(expected.targets) == 4 * 2 + 8 * 5  # 0.3 · 6 real tokens; 0.3 · 16
    np.testing.assert_allclose([float(value) for value in sums], expected, rtol=1e-5)


def test_gradient_is_the_slope_of_the_loss(vocabulary: Vocabulary) -> None:
    task = task_of(vocabulary)
    batch = batch_of(12)
    _, gradients = task.gradients(batch, tf.constant(7, tf.int64))
    variables = list(task.weights.values())
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=variable.shape) for variable in variables]
    slope = sum((gradient.numpy() * d).sum() for gradient, d in zip(gradients, direction, strict=True))
    width = 5e-4
    losses = []
    start = [variable.numpy() for variable in variables]
    for sign in (1, -1):
        for variable, value, d in zip(variables, start, direction, strict=True):
            variable.assign(value + sign * width * d)
        losses.append(numpy_sums(task, vocabulary, batch, 7).loss)
    assert (losses[0] - losses[1]) / (2 * width) == pytest.approx(slope, rel=1e-2)


def train(task: Task, dataset: Path, strategy: tf.distribute.Strategy, steps: int) -> list[float]:
    """The loss of each step."""
    data = open_mixture({str(dataset / "train"): None})
    batches = RowStream(data=data, batch_size=12, seed=4, window_shards=2).batches(0)
    losses = []
    step = tf.function(lambda batch: strategy.run(replica_step, args=(task, batch)))
    for batch in strategy.distribute_datasets_from_function(batches):
        task.running.assign(tf.zeros_like(task.running))
        step(batch)
        sums = RunningSums(*task.running.numpy())
        losses.append(float(sums.loss / sums.targets))
        if len(losses) == steps:
            return losses
    raise AssertionError("the stream has no end")


def test_two_devices_learn_what_one_learns(dataset: Path, vocabulary: Vocabulary) -> None:
    single, mirrored = tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    tasks = [task_of(vocabulary, strategy=strategy) for strategy in (single, mirrored)]
    losses = [
        train(task, dataset, strategy, 4) for task, strategy in zip(tasks, (single, mirrored), strict=True)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][0] != losses[0][1]
    figures = [
        Evaluator(
            TensorFlowExecutor(task, strategy),
            split=open_split(str(dataset / "validation")),
            vocabulary=vocabulary,
            batch_size=10,
            batch_size_option="batch_size",
        ).run()
        for task, strategy in zip(tasks, (single, mirrored), strict=True)
    ]
    assert figures[0].loss == pytest.approx(figures[1].loss, rel=1e-5)
    assert figures[0].targets == figures[1].targets


def test_micro_batches_that_start_later_are_not_computed(vocabulary: Vocabulary) -> None:
    config = config_of(hidden_dropout_prob=0.3)
    whole = task_of(vocabulary, config)
    task = task_of(vocabulary, replace(config, train=TrainConfig(steps=20, batch_size=12, accumulation=3)))
    task._micro_batch_starts = [0, 1, 3]
    gradients = tf.function(task.gradients, jit_compile=True)
    # Rows of later micro-batches would change the sums.
    batch = batch_of(12)
    for step, count in ((0, 1), (1, 2), (2, 2), (3, 3)):
        rows = np.flatnonzero(np.arange(12) % 3 < count)
        part = {name: tf.gather(values, rows) for name, values in batch.items()}
        expected_sums, expected = whole.gradients(part, tf.constant(step, tf.int64))
        sums, actual = gradients(batch, tf.constant(step, tf.int64))
        np.testing.assert_allclose(sums, expected_sums, rtol=1e-5)
        for gradient, reference in zip(actual, expected, strict=True):
            np.testing.assert_allclose(gradient, reference, rtol=1e-3, atol=1e-4)


def test_evaluation_does_not_depend_on_batch_size(dataset: Path, vocabulary: Vocabulary) -> None:
    task = task_of(vocabulary)
    executor = TensorFlowExecutor(task, tf.distribute.get_strategy())
    figures = [
        Evaluator(
            executor,
            split=open_split(str(dataset / "validation")),
            vocabulary=vocabulary,
            batch_size=batch_size,
            batch_size_option="batch_size",
        ).run()
        for batch_size in (67, 16, 16, 5)
    ]
    assert executor.evaluation_function.experimental_get_tracing_count() == 3  # equal shapes share a program
    assert {f.rows for f in figures} == {67}
    # 66 full rows of 16 tokens and one of 8, with 14 and 7 that can be chosen: 0.3 · 16 and 0.3 · 8.
    assert {f.targets for f in figures} == {66 * 5 + 2}
    for result in figures[1:]:
        # Sums have another order, and the rank of equally likely tokens depends on rounding.
        assert result.loss == pytest.approx(figures[0].loss, rel=1e-6)
        assert result.accuracy == pytest.approx(figures[0].accuracy, abs=1.5 / figures[0].targets)
    assert figures[0].perplexity == pytest.approx(np.exp(figures[0].loss))


def test_a_batch_without_targets_only_decays_weights(vocabulary: Vocabulary) -> None:
    config = config_of()
    task = task_of(vocabulary, replace(config, optimizer=replace(config.optimizer, weight_decay=0.0)))
    before = [weight.numpy() for weight in task.weights.values()]
    batch = batch_of(4) | {"row": tf.fill([4], -1)}
    logs = replica_step(task, batch)
    assert float(logs["loss"]) == 0
    for value, weight in zip(before, task.weights.values(), strict=True):
        np.testing.assert_array_equal(value, weight.numpy())


def test_clipping_bounds_the_gradient_that_the_optimizer_sees(vocabulary: Vocabulary) -> None:
    norms = {}
    for clip in (None, 0.01):
        config = config_of()
        task = task_of(vocabulary, replace(config, optimizer=replace(config.optimizer, clip_norm=clip)))
        gradients: list[tf.Tensor] = []
        task.optimizer.apply = gradients.extend
        replica_step(task, batch_of(12))
        norms[clip] = float(tf.linalg.global_norm(gradients))
    assert norms[None] > 0.1
    assert norms[0.01] == pytest.approx(0.01, rel=1e-4)


def test_dropout_is_a_function_of_step_and_row(vocabulary: Vocabulary) -> None:
    task = task_of(vocabulary, config_of(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5))
    batch = batch_of(12)
    gradients = tf.function(task.gradients, jit_compile=True)

    def loss(step: int, **changes: tf.Tensor) -> float:
        sums, _ = gradients(batch | changes, tf.constant(step, tf.int64))
        return float(BatchSums(*sums).loss)

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
    reversed_batch = {name: values[::-1] for name, values in batch.items()}
    assert loss(1, **reversed_batch) == pytest.approx(loss(1), rel=1e-6)
    assert float(task.evaluation_sums(batch).loss) == float(task.evaluation_sums(batch).loss)


def test_a_small_set_of_rows_is_memorized(vocabulary: Vocabulary) -> None:
    config = config_of(hidden_size=64)
    config = replace(config, mlm=MlmConfig(), train=TrainConfig(steps=600, batch_size=32))
    task = task_of(vocabulary, replace(config, optimizer=OptimizerConfig(learning_rate=0.005)))
    batch = batch_of(32)
    step = tf.function(partial(replica_step, task), jit_compile=True)
    for _ in range(600):
        step(batch)
    sums = task.evaluation_sums(batch)
    # Not 0: a token that stays or is drawn at random cannot be told from one that is not to be predicted.
    assert float(sums.loss / sums.targets) < 0.15
    assert float(sums.correct / sums.targets) > 0.95
