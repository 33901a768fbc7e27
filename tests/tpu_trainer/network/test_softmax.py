"""In mixed precision, attention computes its softmax in float32, in the models' layers and in attend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from transformers.tf_utils import stable_softmax

from tests.tpu_trainer.model_types import small_config
from tpu_trainer.config import ModelConfig, ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.attention import attend
from tpu_trainer.network.model import Inputs, LanguageModel
from tpu_trainer.network.patches.functions import float32_softmax


def softmax_types(function: Callable[..., Any], *arguments: Any) -> set[tf.DType]:
    """Returns the dtypes of the softmax operations in `function` and in the functions that it calls."""
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    nodes = [*graph.as_graph_def().node]
    nodes += [
        node
        for library_function in graph.as_graph_def().library.function
        for node in library_function.node_def
    ]
    return {tf.as_dtype(node.attr["T"].type) for node in nodes if node.op == "Softmax"}


@pytest.mark.parametrize(
    ("objective", "model_type"),
    [
        ("mlm", "roberta"),
        ("mlm", "distilbert"),
        ("mlm", "xlm"),
        ("clm", "gpt2"),
        ("clm", "opt"),
    ],
)
def test_every_softmax_of_a_model_in_bfloat16_is_computed_in_float32(
    objective: ObjectiveName, model_type: str, vocabulary: Vocabulary
) -> None:
    model = LanguageModel.create(
        ModelConfig(type=model_type, config=small_config(model_type) | {"num_hidden_layers": 1}),
        objective=objective,
        vocabulary=vocabulary,
        max_length=8,
        seed=0,
        precision="mixed_bfloat16",
    )
    ids = tf.ones([2, 8], tf.int32)
    assert softmax_types(lambda: model._hidden(Inputs(ids, tf.ones_like(ids)), None)) == {tf.float32}


def test_the_result_is_nearer_to_float64_and_its_gradient_is_right() -> None:
    rng = np.random.default_rng(0)
    scores = tf.cast(tf.constant(rng.normal(scale=3, size=(64, 512))), tf.bfloat16)
    weights = tf.cast(tf.constant(rng.normal(size=(64, 512))), tf.bfloat16)

    def error(function: Callable[[tf.Tensor], tf.Tensor]) -> tuple[float, float]:
        float64_scores = tf.cast(scores, tf.float64)
        results = []
        for values, softmax in ((scores, function), (float64_scores, tf.nn.softmax)):
            with tf.GradientTape() as tape:
                tape.watch(values)
                output = tf.function(softmax, jit_compile=values.dtype == tf.bfloat16)(values)
            gradient = tape.gradient(output, values, tf.cast(weights, output.dtype))
            results.append([np.asarray(tf.cast(x, tf.float64)) for x in (output, gradient)])
        return tuple(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(*results, strict=True))

    trainer_errors, stable_errors = error(float32_softmax), error(stable_softmax)
    assert trainer_errors[0] < 0.002  # what is left is the rounding of the result to bfloat16
    assert trainer_errors[0] < stable_errors[0]
    assert trainer_errors[1] < min(0.004, stable_errors[1])


def test_recomputed_attention_has_its_softmax_in_float32() -> None:
    inputs = tf.ones([2, 2, 4, 8], tf.bfloat16)
    assert softmax_types(lambda: attend(inputs, inputs, inputs, bias=None, dropout=None)) == {tf.float32}
