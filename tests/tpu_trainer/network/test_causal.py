"""Causal language modelling: targets, documents, loss and gradient, compared with a GPT-2 in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer.model_types import model_of
from tpu_trainer.data.token_counts import unigram_entropy
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.objectives import Batch, BatchSums, CausalLanguageModelling, Randomness
from tpu_trainer.network.transformer import Inputs

LENGTH, SPLIT, HEADS = 12, 5, 2
KINDS = ("gemma3_text", "gpt2", "llama", "opt", "qwen3_moe")
RANDOMNESS = Randomness(0, tf.constant(0), training=False)


def batch_of(vocabulary: Vocabulary) -> Batch:
    """Returns three rows of two documents each, the last one padded, and a filler row."""
    ids = np.random.default_rng(1).integers(5, vocabulary.size, size=(4, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    ids[2, 9:], mask[2, 9:] = vocabulary.pad_id, 0
    ids[3], mask[3] = vocabulary.pad_id, 0
    columns = np.arange(LENGTH, dtype=np.int32)
    return {
        "input_ids": tf.constant(ids),
        "attention_mask": tf.constant(mask),
        "segment_ids": tf.constant(np.where(columns < SPLIT, 1, 2) * mask),
        "position_ids": tf.constant(np.where(columns < SPLIT, columns, columns - SPLIT) * mask),
        "row": tf.constant([0, 7, 3, -1]),
    }


def with_loss_mask(batch: Batch) -> Batch:
    """Marks a third of the tokens as targets, among them the first ones of documents, which nothing predicts."""
    mask = np.random.default_rng(2).random(batch["input_ids"].shape) < 1 / 3
    mask[:, [0, SPLIT]] = True
    return batch | {"loss_mask": tf.constant(mask.astype(np.int32)) * batch["attention_mask"]}


def inputs_of(batch: Batch) -> Inputs:
    return Inputs(**{name: values for name, values in batch.items() if name != "row"})


def logits_of(model: LanguageModel, batch: Batch) -> np.ndarray:
    return model.logits_at(inputs_of(batch)).numpy()


@pytest.mark.parametrize("model_type", KINDS)
def test_the_loss_equals_that_of_the_models_logits(model_type: str, vocabulary: Vocabulary) -> None:
    model, batch = model_of(model_type, vocabulary, length=LENGTH), batch_of(vocabulary)
    ids, mask = batch["input_ids"].numpy(), batch["attention_mask"].numpy()
    logits = logits_of(model, batch)[..., :50].astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    targets, weights = np.roll(ids, -1, axis=1), mask.copy()
    weights[:, -1] = 0
    loss, hits, _ = model.loss_sums(
        inputs_of(batch), targets=tf.constant(targets), weights=tf.constant(weights, tf.float32)
    )
    target_log_probabilities = np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    assert float(loss) == pytest.approx(-(target_log_probabilities * weights).sum(), rel=1e-5)
    assert float(hits) == ((log_probabilities.argmax(axis=-1) == targets) * weights).sum()


@pytest.mark.parametrize("model_type", KINDS)
def test_a_token_attends_to_the_preceding_tokens_of_its_document(
    model_type: str, vocabulary: Vocabulary
) -> None:
    model, batch = model_of(model_type, vocabulary, length=LENGTH), batch_of(vocabulary)

    def change(column: int) -> Batch:
        ids = batch["input_ids"].numpy()
        ids[:2, column] = 5 + (ids[:2, column] - 4) % 45
        return batch | {"input_ids": tf.constant(ids)}

    logits, after, before = (logits_of(model, b)[:2] for b in (batch, change(8), change(2)))
    np.testing.assert_array_equal(logits[:, :8], after[:, :8])
    assert np.abs(logits - after)[:, 8:].max() > 1e-3
    np.testing.assert_array_equal(logits[:, SPLIT:], before[:, SPLIT:])
    assert np.abs(logits - before)[:, 2:SPLIT].max() > 1e-3
    one_text = batch | {"segment_ids": tf.ones_like(batch["segment_ids"])}
    assert np.abs(logits_of(model, one_text)[:2] - logits)[:, SPLIT:].max() > 1e-3


@pytest.mark.parametrize("model_type", KINDS)
def test_a_document_has_the_same_logits_in_a_row_of_its_own(model_type: str, vocabulary: Vocabulary) -> None:
    model, batch = model_of(model_type, vocabulary, length=LENGTH), batch_of(vocabulary)
    own_row = logits_of(model, {name: values[:2, SPLIT:] for name, values in batch.items() if name != "row"})
    np.testing.assert_allclose(own_row, logits_of(model, batch)[:2, SPLIT:], rtol=1e-4, atol=1e-5)


def gpt2_logits(weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> np.ndarray:
    """GPT-2 (Radford et al., 2019) with one layer, in float64."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2

    segments = batch["segment_ids"]
    weights = {  # a stack of one layer
        name.removeprefix("layers."): value[0] if name.startswith("layers.") else value
        for name, value in weights.items()
    }
    table = weights["embeddings.tokens.weight"]
    x = table[batch["input_ids"]] + weights["embeddings.positions.weight"][batch["position_ids"]]
    normed = norm(x, "attention_norm")
    query, key, value = (
        part.reshape(*part.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
        for part in (linear(normed, f"attention.{name}") for name in ("query", "key", "value"))
    )
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(query.shape[-1])
    visible = np.tril(np.ones((LENGTH, LENGTH), bool)) & (segments[:, :, None] == segments[:, None, :])
    scores = np.exp(np.where(visible[:, None], scores, -np.inf))
    attention = (scores / scores.sum(axis=-1, keepdims=True)) @ value
    x = x + linear(attention.transpose(0, 2, 1, 3).reshape(x.shape), "attention.output")
    x = x + linear(gelu(linear(norm(x, "mlp_norm"), "mlp.up")), "mlp.down")
    return norm(x, "final_norm") @ table.T


def gpt2_sums(weights: dict[str, np.ndarray], batch: dict[str, np.ndarray], size: int) -> BatchSums:
    logits = gpt2_logits(weights, batch)[..., :size]
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = hits = targets = 0
    for row, ids in enumerate(batch["input_ids"]):
        for column in range(1, LENGTH):
            same_document = batch["segment_ids"][row, column] == batch["segment_ids"][row, column - 1]
            is_target = "loss_mask" not in batch or batch["loss_mask"][row, column]
            if batch["attention_mask"][row, column] and same_document and is_target:
                loss -= log_probabilities[row, column - 1, ids[column]]
                hits += int(log_probabilities[row, column - 1].argmax() == ids[column])
                targets += 1
    return BatchSums(loss, hits, targets, batch["attention_mask"].sum())


@pytest.mark.parametrize("targets", ["all", "marked"])
def test_loss_and_gradient_equal_those_of_a_gpt2_in_numpy(targets: str, vocabulary: Vocabulary) -> None:
    model, batch = model_of("gpt2", vocabulary, length=LENGTH, n_layer=1), batch_of(vocabulary)
    if targets == "marked":
        batch = with_loss_mask(batch)
    objective = CausalLanguageModelling(model=model, max_length=LENGTH)
    names, variables = model.network.weights.keys(), list(model.network.weights.values())

    @tf.function(jit_compile=True)
    def sums_and_gradient() -> tuple[BatchSums, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            sums = objective.sums(batch, Randomness(0, tf.constant(0), training=True))
        return sums, [tf.convert_to_tensor(g) for g in tape.gradient(sums.loss, variables)]

    sums, gradient = sums_and_gradient()
    numpy_batch = {name: values.numpy() for name, values in batch.items()}
    weights = {
        name: variable.numpy().astype(np.float64) for name, variable in zip(names, variables, strict=True)
    }
    expected = gpt2_sums(weights, numpy_batch, vocabulary.size)
    # Two documents in a full row; the padded row has 9 tokens.
    assert int(expected.targets) == (2 * (4 + 6) + 4 + 3 if targets == "all" else 9)
    np.testing.assert_allclose([float(value) for value in sums], expected, rtol=1e-5)

    rng = np.random.default_rng(0)
    for name, tensor in zip(names, gradient, strict=True):
        direction = rng.normal(size=tensor.shape)
        losses = [
            gpt2_sums(
                weights | {name: weights[name] + sign * 1e-5 * direction}, numpy_batch, vocabulary.size
            ).loss
            for sign in (1, -1)
        ]
        slope = (losses[0] - losses[1]) / 2e-5
        assert (tensor.numpy() * direction).sum() == pytest.approx(slope, rel=1e-4, abs=1e-4), name


def test_in_rows_without_a_mask_the_pad_id_marks_padding(vocabulary: Vocabulary) -> None:
    objective = CausalLanguageModelling(model=model_of("gpt2", vocabulary, length=LENGTH), max_length=LENGTH)
    batch = {name: values for name, values in batch_of(vocabulary).items() if name != "segment_ids"}
    batch_without_mask = {name: values for name, values in batch.items() if name != "attention_mask"}
    masked, unmasked = (objective.sums(b, RANDOMNESS) for b in (batch, batch_without_mask))
    assert int(unmasked.targets) == 11 + 11 + 8
    np.testing.assert_allclose([float(v) for v in unmasked], [float(v) for v in masked], rtol=1e-5)


def test_unigram_entropy_counts_every_token(vocabulary: Vocabulary) -> None:
    counts = np.zeros(50)
    counts[[2, *range(10, 17)]] = 7
    assert unigram_entropy(counts, vocabulary, "clm") == pytest.approx(np.log(8))
