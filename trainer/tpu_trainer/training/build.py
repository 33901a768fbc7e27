"""Builds the training task: model, objective and optimizer."""

from __future__ import annotations

from functools import partial

import numpy as np

from tpu_trainer.config import FitConfig
from tpu_trainer.data.token_counts import target_counts
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.network.attention_kernel import kernel_dtype
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.objectives import CausalLanguageModelling, MaskedLanguageModelling, Objective
from tpu_trainer.network.patches.fused_projection import divide_fused_projections
from tpu_trainer.network.patches.patching import KernelOptions, MemoryOptions
from tpu_trainer.step.average import WeightAverage
from tpu_trainer.step.optimizers.build import build_optimizer
from tpu_trainer.step.schedule import schedule_of
from tpu_trainer.step.task import Task


def build_task(
    config: FitConfig,
    *,
    vocabulary: Vocabulary,
    max_length: int,
    target: Target | None = None,
    token_counts: np.ndarray | None = None,
    initial: InitialValues | None = None,
) -> Task:
    """Builds the task of `config`. Call it in the scope of the devices.

    Args:
        config: The run's.
        vocabulary: The tokenizer's.
        max_length: Tokens in a row.
        target: The devices; None: a single one without an attention kernel.
        token_counts: float[vocabulary.size]; determine the initial output bias. None: it is 0.
        initial: Gets the values of postponed variables.
    """
    target = target or Target()
    model = LanguageModel.create(
        config.model,
        objective=config.objective,
        vocabulary=vocabulary,
        max_length=max_length,
        seed=config.seed,
        precision=config.train.precision,
        memory=_memory_options(config, max_length, target),
        shards=target.shards,
        initial=initial,
    )
    divide_fused_projections(model.network, target.column_groups)
    if token_counts is not None:
        model.init_output_bias(target_counts(token_counts, vocabulary, config.objective), initial)
    weights = {variable.name.split(":")[0]: variable for variable in model.network.trainable_variables}
    make_variable = (initial or InitialValues()).variable
    average = None
    if config.optimizer.ema is not None:
        mean = {
            name: make_variable(f"average/{name}", weight.shape, partial(np.zeros, weight.shape, np.float32))
            for name, weight in weights.items()
        }
        average = WeightAverage(trained=weights, mean=mean, decay=config.optimizer.ema)
    optimizer = build_optimizer(
        config.optimizer,
        schedule_of(config),
        weights=weights,
        precision=config.train.precision,
        make_variable=make_variable,
    )
    return Task(
        objective=_objective(config, model, max_length),
        weights=weights,
        optimizer=optimizer,
        seed=config.seed,
        clip_norm=config.optimizer.clip_norm,
        average=average,
        accumulation=config.train.accumulation,
        compile_gradients=target.compile_gradients,
        skip_spikes=config.train.skip_spikes,
    )


def _memory_options(config: FitConfig, max_length: int, target: Target) -> MemoryOptions:
    kernel = None
    if config.train.attention_kernel and target.kernel_generation is not None:
        dtype = kernel_dtype(config.train.precision, target.kernel_generation)
        kernel = KernelOptions(length=max_length, dtype=dtype, devices=target.column_groups)
    return MemoryOptions(
        recompute_blocks=config.train.gradient_checkpointing,
        recompute_attention=config.train.attention_kernel or config.train.recompute_attention,
        attention_kernel=kernel,
    )


def _objective(config: FitConfig, model: LanguageModel, max_length: int) -> Objective:
    if config.objective == "clm":
        return CausalLanguageModelling(model=model, max_length=max_length)
    masking = Masking(
        vocabulary=model.vocabulary,
        max_length=max_length,
        probability=config.mlm.probability,
        unit=config.mlm.unit,
    )
    return MaskedLanguageModelling(model=model, masking=masking)
