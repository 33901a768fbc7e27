"""The optimizer of a configuration, and which weights decay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpu_trainer.config import OptimizerConfig, Precision
from tpu_trainer.network.initial_values import InitialValues, MakeVariable
from tpu_trainer.step.optimizers.adafactor import Adafactor
from tpu_trainer.step.optimizers.adamw import AdamW
from tpu_trainer.step.optimizers.lion import Lion
from tpu_trainer.step.optimizers.muon import Muon, is_hidden_matrix
from tpu_trainer.step.optimizers.optimizer import Optimizer, UpdateRule, own_dimensions
from tpu_trainer.step.schedule import Schedule
from tpu_trainer.support.errors import UsageError


def decays(name: str, shape: Sequence[int], no_decay: Sequence[str] = ()) -> bool:
    """Whether weight decay applies to a weight.

    It does not apply to vectors of a layer, which biases and norms are in every model, or to weights whose name
    contains a match of a regular expression in `no_decay`.
    """
    matrix = len([size for size in own_dimensions(name, shape) if size != 1]) > 1
    return matrix and not any(re.search(pattern, name) for pattern in no_decay)


def build_optimizer(
    config: OptimizerConfig,
    schedule: Schedule,
    *,
    weights: Mapping[str, tf.Variable],
    precision: Precision = "float32",
    make_variable: MakeVariable | None = None,
) -> Optimizer:
    """Builds the optimizer of `weights`, including its slots, so that a checkpoint can be loaded before the first step.

    It does not clip: the train step clips the gradient, after summing it over the replicas.

    Args:
        config: The options.
        schedule: Its peak is the configured learning rate.
        weights: The trained variables by name.
        precision: The network's.
        make_variable: Creates the slots; None: at once.

    Raises:
        UsageError: If a pattern of `no_decay` matches no weight.
    """
    for pattern in config.no_decay:
        if not any(re.search(pattern, name) for name in weights):
            names = ", ".join(list(weights)[:3])
            raise UsageError(
                f"--optimizer.no_decay: {pattern!r} matches no weight's name; names are, for example, {names}"
            )
    config = config.resolved()
    return Optimizer(
        weights=weights,
        rules=_rules(config, weights, precision),
        schedule=schedule,
        weight_decay=config.weight_decay,
        decayed=[name for name, weight in weights.items() if decays(name, weight.shape, config.no_decay)],
        make_variable=make_variable or InitialValues().variable,
    )


def _rules(
    config: OptimizerConfig, weights: Mapping[str, tf.Variable], precision: Precision
) -> dict[str, UpdateRule]:
    if config.name == "adafactor":
        return dict.fromkeys(weights, Adafactor())
    if config.name == "lion":
        return dict.fromkeys(weights, Lion(beta1=config.beta1, beta2=config.beta2))
    adamw = AdamW(beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon)
    rules: dict[str, UpdateRule] = dict.fromkeys(weights, adamw)
    if config.name == "muon":
        muon = Muon(
            momentum=config.muon_momentum,
            rate_factor=config.muon_learning_rate / config.learning_rate,
            dtype=tf.bfloat16 if precision == "mixed_bfloat16" else tf.float32,
        )
        rules |= {name: muon for name, weight in weights.items() if is_hidden_matrix(name, weight.shape)}
    return rules
