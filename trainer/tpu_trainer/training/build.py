"""Builds the training task: model, objective and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from tpu_trainer.config import FitConfig
from tpu_trainer.data.token_counts import target_counts
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.network import attention_kernel, cudnn_attention, splash_attention
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.configuration import configure
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernels import Kernel, KernelName
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.objectives import (
    CausalLanguageModelling,
    GivenTargets,
    MaskedLanguageModelling,
    Objective,
)
from tpu_trainer.network.transformer import Computation
from tpu_trainer.network.weights import Network
from tpu_trainer.step.average import WeightAverage
from tpu_trainer.step.optimizers.build import build_optimizer
from tpu_trainer.step.schedule import schedule_of
from tpu_trainer.step.task import Task
from tpu_trainer.support.errors import UsageError


def build_task(
    config: FitConfig,
    *,
    vocabulary: Vocabulary,
    max_length: int,
    target: Target | None = None,
    token_counts: np.ndarray | None = None,
    initial: InitialValues | None = None,
    first_rows: Sequence[int] = (),
    given_targets: bool = False,
) -> Task:
    """Builds the task of `config`. Call it in the scope of the devices.

    Args:
        config: The run's.
        vocabulary: The tokenizer's.
        max_length: Tokens in a row.
        target: The devices; None: a single one without an attention kernel.
        token_counts: float[vocabulary.size]; determine the initial output bias. None: it is 0.
        initial: Gets the values of postponed variables.
        first_rows: The number of the first row of each source whose sums are logged.
        given_targets: Whether the batches name the targets, instead of the objective of `config`.

    Raises:
        UsageError: If the devices cannot divide the model, or an attention kernel does not support it.
    """
    target = target or Target()
    initial = initial or InitialValues()
    architecture = configure(
        config.model, objective=config.objective, vocabulary=vocabulary, max_length=max_length
    ).architecture
    target.division.check(architecture, max_length)
    model = LanguageModel(
        network=Network(architecture, seed=config.seed, initial=initial),
        vocabulary=vocabulary,
        objective=config.objective,
        computation=_computation(config, architecture, max_length, target),
        z_loss=config.train.z_loss,
    )
    if token_counts is not None:
        model.init_output_bias(target_counts(token_counts, vocabulary, config.objective), initial)
    weights, make_variable = model.network.weights, initial.variable
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
        objective=_objective(config, model, max_length, given_targets=given_targets),
        weights=weights,
        optimizer=optimizer,
        seed=config.seed,
        clip_norm=config.optimizer.clip_norm,
        average=average,
        accumulation=config.train.accumulation,
        micro_batch_starts=config.train.micro_batch_starts,
        compile_gradients=target.compile_gradients,
        skip_spikes=config.train.skip_spikes,
        first_rows=first_rows,
    )


def _computation(
    config: FitConfig, architecture: Architecture, max_length: int, target: Target
) -> Computation:
    computation = Computation(
        dtype=tf.bfloat16 if config.train.precision == "mixed_bfloat16" else tf.float32,
        recompute=config.train.recompute,
        # What a mesh gathers before the loop, it gathers in this dtype.
        narrow_in_loop=config.mesh.fsdp != "keep",
        division=target.division,
    )
    if not config.train.attention_kernel:
        return computation
    division = target.division
    name: KernelName = "mosaic"
    if target.cudnn:
        name = "cudnn"
        reason = cudnn_attention.unsupported_reason(architecture, dtype=computation.dtype, division=division)
    else:
        reason = attention_kernel.unsupported_reason(architecture, length=max_length, division=division)
        if reason is not None and target.splash:
            name = "splash"
            reason = splash_attention.unsupported_reason(architecture, length=max_length, division=division)
    if reason is not None:
        raise UsageError(f"--train.attention_kernel: {reason}; use --train.recompute attention instead")
    if name != "mosaic":
        return replace(computation, kernel=Kernel(name, computation.dtype))
    if target.kernel_generation is not None:
        dtype = attention_kernel.kernel_dtype(config.train.precision, target.kernel_generation)
        return replace(computation, kernel=Kernel("mosaic", dtype))
    if computation.recompute == "nothing":
        return replace(computation, recompute="attention")
    return computation


def _objective(config: FitConfig, model: LanguageModel, max_length: int, *, given_targets: bool) -> Objective:
    if given_targets:
        # A masked model predicts one token of a text after the other, in rows of their own.
        return GivenTargets(model=model, max_length=max_length, single=config.objective == "mlm")
    if config.objective == "clm":
        return CausalLanguageModelling(model=model, max_length=max_length)
    masking = Masking(
        vocabulary=model.vocabulary,
        max_length=max_length,
        probability=config.mlm.probability,
        unit=config.mlm.unit,
    )
    return MaskedLanguageModelling(model=model, masking=masking)
