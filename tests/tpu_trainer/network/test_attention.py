"""Attention that is recomputed in the backward pass, compared with the models' attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.attention import attend
from tpu_trainer.network.call_context import CallContext, CallValues
from tpu_trainer.network.patches.dropout import key_dropout
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task

LENGTH = 12
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("mlm", BERT | {"attention_probs_dropout_prob": 0.3}),
    "bert": ("mlm", BERT | {"attention_probs_dropout_prob": 0.0}),
    "gpt2": ("clm", {"n_embd": 16, "n_layer": 2, "n_head": 2, "attn_pdrop": 0.3}),
}


@pytest.mark.parametrize("model_type", CONFIGS)
def test_loss_and_gradient_equal_those_of_the_models_attention(
    model_type: str, vocabulary: Vocabulary
) -> None:
    objective, values = CONFIGS[model_type]
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=model_type, config=values),
    )
    ids = np.random.default_rng(0).integers(5, 50, size=(4, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    ids[2, 7:], mask[2, 7:] = 1, 0
    batch = {"input_ids": tf.constant(ids), "attention_mask": tf.constant(mask), "row": tf.range(4)}
    results = []
    for recompute in (False, True):
        task = build_task(
            replace(config, train=TrainConfig(recompute_attention=recompute)),
            vocabulary=vocabulary,
            max_length=LENGTH,
        )
        step = tf.function(task.gradients, jit_compile=True)
        sums, gradients = step(batch, tf.constant(3, tf.int64))
        results.append(([float(value) for value in sums], [gradient.numpy() for gradient in gradients]))
        replaced_layers = {
            type(layer).__name__ for layer in task.network.submodules if "Attention" in type(layer).__name__
        }
        assert any(name.startswith("Recomputing") for name in replaced_layers) == recompute
    (sums, gradients), (other_sums, other_gradients) = results
    np.testing.assert_allclose(other_sums, sums, rtol=1e-5)
    for gradient, other_gradient in zip(gradients, other_gradients, strict=True):
        np.testing.assert_allclose(
            other_gradient, gradient, rtol=1e-3, atol=1e-5 * max(1, np.abs(gradient).max())
        )


def test_attend_equals_plain_operations() -> None:
    rng = np.random.default_rng(1)
    inputs = [tf.constant(rng.normal(size=(3, 2, n, 4)), tf.float32) for n in (5, 7, 7)]
    bias = tf.constant(rng.normal(size=(3, 1, 5, 7)), tf.float32)
    weights = tf.constant(rng.normal(size=(3, 2, 5, 4)), tf.float32)
    model = keras.Sequential([keras.layers.Dropout(0.4)])
    model.build([None, 7])
    context = CallContext()
    key_dropout(model, context)
    (layer,) = model.layers

    def attend_plainly(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(query, key, transpose_b=True) / 2 + bias
        return tf.matmul(layer(tf.nn.softmax(scores), training=True), value)

    def attend_product(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return attend(query, key, value, bias=bias, dropout=layer)

    results = []
    for function in (attend_plainly, attend_product):
        key = (tf.constant(1, tf.uint32), tf.constant(2, tf.uint32))
        with context.using(CallValues(dropout_key=key, row=tf.range(3))):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                output = function(*inputs)
            results.append([output, *tape.gradient(output, inputs, output_gradients=weights)])
    for expected, actual in zip(*results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=1e-5)


def test_models_without_supported_attention_layers_are_rejected(vocabulary: Vocabulary) -> None:
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        model=ModelConfig(
            type="distilbert", config={"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
        ),
        train=TrainConfig(recompute_attention=True),
    )
    with pytest.raises(
        UsageError, match=r"--train.recompute_attention: not supported for models of type 'distilbert'"
    ):
        build_task(config, vocabulary=vocabulary, max_length=LENGTH)
