"""AdamW, compared with its formula."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tpu_trainer.config import ModelConfig, OptimizerConfig, ScheduleConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.errors import UsageError
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.training.optimizer import build_optimizer, decays
from tpu_trainer.training.schedule import Schedule


def test_the_first_steps_follow_adamws_formula() -> None:
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6)
    schedule = Schedule(ScheduleConfig(name="linear"), peak=config.learning_rate, steps=10)
    rng = np.random.default_rng(0)
    start = {"matrix": rng.normal(size=(3, 4)), "vector": rng.normal(size=4)}
    variables = [tf.Variable(value.astype(np.float32), name=name) for name, value in start.items()]
    optimizer = build_optimizer(config, schedule, variables=variables)
    values = [value.copy() for value in start.values()]
    m = [np.zeros_like(value) for value in values]
    v = [np.zeros_like(value) for value in values]
    for step in range(1, 6):
        gradients = [rng.normal(size=value.shape) for value in values]
        optimizer.apply_gradients(
            zip([tf.constant(g, tf.float32) for g in gradients], variables, strict=True),
            skip_gradients_aggregation=True,
        )
        rate = 0.01 * (1 - (step - 1) / 10)
        for i, gradient in enumerate(gradients):
            # Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), algorithm 2; epsilon is added to
            # the uncorrected root, as in Keras: with epsilon this small the difference does not show.
            m[i] = 0.8 * m[i] + 0.2 * gradient
            v[i] = 0.9 * v[i] + 0.1 * gradient**2
            corrected = m[i] / (1 - 0.8**step) / (np.sqrt(v[i] / (1 - 0.9**step)) + 1e-6)
            decay = 0.1 if i == 0 else 0.0
            values[i] = values[i] - rate * (corrected + decay * values[i])
    for variable, value in zip(variables, values, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=2e-5, atol=1e-6)


def test_biases_and_norms_do_not_decay(vocabulary: Vocabulary) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = ModelConfig(type="roberta", config=sizes)
    network = LanguageModel.create(config, vocabulary=vocabulary, max_length=8, seed=0).network
    decayed = {variable.name for variable in network.trainable_variables if decays(variable)}
    others = {variable.name for variable in network.trainable_variables} - decayed
    assert all(name.endswith(("bias:0", "beta:0", "gamma:0")) for name in others)
    assert not any(name.endswith(("bias:0", "beta:0", "gamma:0")) for name in decayed)
    assert len(decayed) == 10  # three embeddings, six kernels of a layer, the head's


def test_gpt2s_norms_and_matches_of_no_decay_do_not_decay(vocabulary: Vocabulary) -> None:
    config = ModelConfig(type="gpt2", config={"n_embd": 8, "n_layer": 1, "n_head": 2})
    network = LanguageModel.create(
        config, objective="clm", vocabulary=vocabulary, max_length=8, seed=0
    ).network
    variables = network.trainable_variables
    norms = [variable for variable in variables if "/ln_" in variable.name]
    assert len(norms) == 6
    assert not any(decays(variable) for variable in norms)
    # Two embeddings and four kernels, some of which TensorFlow's GPT-2 stores as [1, n].
    assert sum(decays(variable) for variable in variables) == 6
    assert not any(decays(variable, ["w[tp]e/"]) for variable in variables if "/wte/" in variable.name)
    assert sum(decays(variable, ["w[tp]e/"]) for variable in variables) == 4

    schedule = Schedule(ScheduleConfig(), peak=0.01, steps=10)
    with pytest.raises(UsageError, match=r"--optimizer\.no_decay: 'nowhere' matches no weight's name"):
        build_optimizer(OptimizerConfig(no_decay=["nowhere"]), schedule, variables=variables)
    optimizer = build_optimizer(
        OptimizerConfig(learning_rate=0.01, weight_decay=0.5, no_decay=["w[tp]e/"]),
        schedule,
        variables=variables,
    )
    before = {variable.name: variable.numpy() for variable in variables}
    optimizer.apply_gradients(
        [(tf.zeros(variable.shape), variable) for variable in variables], skip_gradients_aggregation=True
    )
    for variable in variables:
        factor = 1 - 0.01 * 0.5 if decays(variable, ["w[tp]e/"]) else 1.0
        np.testing.assert_allclose(variable.numpy(), before[variable.name] * factor, rtol=1e-6)
