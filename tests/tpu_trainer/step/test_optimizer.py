"""AdamW, compared with PyTorch's formula, and which weights decay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tpu_trainer.config import ModelConfig, OptimizerConfig, ScheduleConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.step.optimizer import build_optimizer, decays
from tpu_trainer.step.schedule import Schedule
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.8, 0.9), (0.0, 0.0)])
def test_updates_follow_the_formula_of_pytorchs_adamw(beta1: float, beta2: float) -> None:
    # As large as the gradients of half of the weights, so that it matters where epsilon is added.
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1, beta1=beta1, beta2=beta2, epsilon=1e-3)
    schedule = Schedule(ScheduleConfig(name="linear"), peak=config.learning_rate, steps=20)
    rng = np.random.default_rng(0)
    start = {"matrix": rng.normal(size=(3, 4)), "vector": rng.normal(size=4)}
    variables = [tf.Variable(value.astype(np.float32), name=name) for name, value in start.items()]
    optimizer = build_optimizer(config, schedule, variables=variables)
    values = [value.copy() for value in start.values()]
    m = [np.zeros_like(value) for value in values]
    v = [np.zeros_like(value) for value in values]
    for step in range(1, 11):
        gradients = [rng.normal(size=value.shape) * rng.choice([1e-3, 1], value.shape) for value in values]
        optimizer.apply_gradients(
            zip([tf.constant(g, tf.float32) for g in gradients], variables, strict=True),
            skip_gradients_aggregation=True,
        )
        rate = 0.01 * (1 - (step - 1) / 20)
        for i, gradient in enumerate(gradients):
            # The documentation of torch.optim.AdamW, in its order; a test of `make test-export` runs PyTorch's.
            values[i] -= rate * (0.1 if i == 0 else 0.0) * values[i]
            m[i] = beta1 * m[i] + (1 - beta1) * gradient
            v[i] = beta2 * v[i] + (1 - beta2) * gradient**2
            corrected_m, corrected_v = m[i] / (1 - beta1**step), v[i] / (1 - beta2**step)
            values[i] -= rate * corrected_m / (np.sqrt(corrected_v) + 1e-3)
    for variable, value in zip(variables, values, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-6, atol=1e-6)


def test_the_names_in_checkpoints_are_those_of_keras_adamw() -> None:
    variable = tf.Variable(tf.zeros(2), name="dense/kernel")
    schedule = Schedule(ScheduleConfig(), peak=0.01, steps=10)
    optimizer = build_optimizer(OptimizerConfig(), schedule, variables=[variable])
    keras_optimizer = keras.optimizers.AdamW(schedule)
    keras_optimizer.build([variable])
    assert [each.name for each in optimizer.variables] == [each.name for each in keras_optimizer.variables]


def test_biases_and_norms_do_not_decay(vocabulary: Vocabulary) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = ModelConfig(type="roberta", config=sizes)
    network = LanguageModel.create(config, vocabulary=vocabulary, max_length=8, seed=0).network
    decayed = {variable.name for variable in network.trainable_variables if decays(variable)}
    undecayed = {variable.name for variable in network.trainable_variables} - decayed
    assert all(name.endswith(("bias:0", "beta:0", "gamma:0")) for name in undecayed)
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
