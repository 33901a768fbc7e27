"""Tests of attention by cuDNN, with a stand-in for its calls. devices/pjrt/test_cudnn_calls.py tests the calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tpu_trainer import kernel_reference
from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, Recompute, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.network import cudnn_attention
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernels import Kernel
from tpu_trainer.network.transformer import Computation, Inputs, hidden_states
from tpu_trainer.network.weights import Network
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task

LENGTH = 24
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
WINDOWS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("clm", {"num_key_value_heads": 2}),
    "mistral": ("clm", {"num_key_value_heads": 1, "sliding_window": 7}),
    "gemma3_text": ("clm", {"num_key_value_heads": 2, "head_dim": 8, **WINDOWS}),
    "modernbert": ("mlm", {"global_attn_every_n_layers": 2, "local_attention": 8, "attention_dropout": 0.0}),
}


@pytest.mark.parametrize(
    ("model_type", "recompute", "documents"),
    [
        ("llama", "nothing", False),
        ("llama", "all", True),
        ("mistral", "attention", False),
        ("gemma3_text", "nothing", False),
        ("gemma3_text", "attention", True),
        ("modernbert", "nothing", True),
        pytest.param("modernbert", "all", False, marks=pytest.mark.wide),
    ],
)
def test_outputs_and_gradients_equal_those_of_plain_attention(
    model_type: str,
    recompute: Recompute,
    documents: bool,
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cudnn_attention, "_run", kernel_reference.run_cudnn)
    objective, values = MODELS[model_type]
    architecture = configure(
        ModelConfig(type=model_type, config=SMALL | values),
        objective=objective,
        vocabulary=vocabulary,
        max_length=LENGTH,
    ).architecture
    assert cudnn_attention.unsupported_reason(architecture, dtype=tf.bfloat16) is None
    weights = Network(architecture, seed=0, initial=InitialValues()).weights
    random = np.random.default_rng(0)
    ids = random.integers(5, 50, (3, LENGTH))
    real = np.ones_like(ids)
    real[2, 17:] = 0
    segments = np.sort(random.integers(0, 3, ids.shape))
    inputs = Inputs(
        tf.constant(ids, tf.int32),
        tf.constant(real, tf.int32),
        segment_ids=tf.constant(segments, tf.int32) if documents else None,
    )
    weighting = random.standard_normal((*ids.shape, 32)) * real[..., None]
    results = []
    for kernel in (None, Kernel("cudnn", tf.float32)):

        def compute(kernel: Kernel | None = kernel) -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape() as tape:
                hidden, _ = hidden_states(
                    architecture,
                    weights,
                    inputs,
                    Computation(recompute=recompute, kernel=kernel),
                    training=True,
                )
                loss = tf.reduce_sum(hidden * weighting)
            return hidden * real[..., None].astype(np.float32), tape.gradient(
                loss, list(weights.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO
            )

        results.append(tf.function(compute, jit_compile=True, autograph=False)())
    (hidden, gradients), (kernel_hidden, kernel_gradients) = results
    np.testing.assert_allclose(kernel_hidden, hidden, atol=1e-5)
    for name, kernel_gradient, gradient in zip(weights, kernel_gradients, gradients, strict=True):
        expected = tf.convert_to_tensor(gradient).numpy()
        atol = 1e-5 * max(1, np.abs(expected).max())
        np.testing.assert_allclose(tf.convert_to_tensor(kernel_gradient), expected, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("model", "precision", "message"),
    [
        (ModelConfig(type="llama", config=SMALL), "float32", "computes in bfloat16"),
        (ModelConfig(type="llama", config=SMALL | {"head_dim": 12}), "mixed_bfloat16", "12 dimensions"),
        (ModelConfig(type="gemma2", config=SMALL | {"head_dim": 8}), "mixed_bfloat16", "caps scores"),
        (ModelConfig(type="gpt2", config={"n_embd": 32, "n_head": 4}), "mixed_bfloat16", "drops prob"),
    ],
)
def test_unsupported_models_are_refused(
    model: ModelConfig, precision: str, message: str, vocabulary: Vocabulary
) -> None:
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective="clm",
        model=model,
        train=TrainConfig(attention_kernel=True, precision=precision),
    )
    with pytest.raises(UsageError, match=f"--train.attention_kernel: .*{message}"):
        build_task(config, vocabulary=vocabulary, max_length=LENGTH, target=Target(cudnn=True))
