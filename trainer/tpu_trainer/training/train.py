"""Trains from a configuration: loads the data, builds the task, runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill_reader import Dataset, Mixture
from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import FitConfig, ObjectiveName
from tpu_trainer.data.batches import LOSS_MASK, RowStream, check_records
from tpu_trainer.data.choices import ChoiceRows
from tpu_trainer.data.mixture import source_first_rows, token_counts
from tpu_trainer.data.token_counts import unigram_entropy
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.devices import Devices
from tpu_trainer.devices.executor import StepExecutor, check_batch_size
from tpu_trainer.devices.opening import open_devices
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.exports.initial_weights import load_weights
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.kernel_check import check_attention_kernel
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.runs.time_spent import TimeSpent
from tpu_trainer.step.task import Task
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task
from tpu_trainer.training.evaluation import ChoiceEvaluator, Evaluator
from tpu_trainer.training.expected_time import Speed, accelerator_speed, cpu_speed
from tpu_trainer.training.model_flops import training_flops_per_row
from tpu_trainer.training.progress import ModelFigures
from tpu_trainer.training.run import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The data of a run."""

    rows: RowStream
    validation: Mapping[str, Dataset]
    vocabulary: Vocabulary
    token_counts: np.ndarray | None
    """float64[vocabulary.size], proportional to the counts; None if a dataset has no statistics."""
    baselines: dict[str, float]
    """Name → loss that a model should beat, in nats per token, from the data's statistics."""


def train_run(
    config: FitConfig,
    *,
    folder: RunFolder,
    train: Mixture,
    validation: Mapping[str, Dataset],
    choices: Mapping[str, ChoiceRows],
    vocabulary: Vocabulary,
    peers: Peers,
    time_spent: TimeSpent,
) -> dict[str, Any]:
    """Trains to the last step, from the newest checkpoint in `folder` if there is one.

    Args:
        config: The run's.
        folder: The run's.
        train: The training data.
        validation: Name → split to evaluate.
        choices: Name → multiple-choice items to answer.
        vocabulary: The tokenizer's.
        peers: The processes that train together.
        time_spent: Has the time since the start of this process.

    Returns:
        The summary, which is also written to the folder and printed.

    Raises:
        UsageError: If the tokenizer, the strategy or the checkpoint does not fit.
        DivergedError: If the loss or the gradient is not finite.
        InterruptedRun: After a signal; the state is saved.
        NotSavedError: If the last state could not be written.
    """
    tf.get_logger().setLevel("ERROR")
    devices = open_devices(config, peers)
    data = _load(config, train=train, validation=validation, vocabulary=vocabulary, replicas=devices.replicas)
    with elapsed("fit: building the model"):
        task = _build(config, data=data, folder=folder, devices=devices)
    executor = devices.executor(task)
    _check_kernel(task.objective.model, devices, max_length=train.max_length)
    run = Run(
        config,
        folder=folder,
        rows=data.rows,
        executor=executor,
        evaluators=_evaluators(config, data, executor),
        choices={
            name: ChoiceEvaluator(
                executor,
                rows=rows,
                vocabulary=vocabulary,
                batch_size=config.train.evaluation_batch_size or config.train.batch_size,
            )
            for name, rows in choices.items()
        },
        baselines=data.baselines,
        model=_figures(config, task, devices, executor, train),
        time_spent=time_spent,
    )
    return run.train()


def _evaluators(config: FitConfig, data: _Data, executor: StepExecutor) -> dict[str, Evaluator]:
    return {
        name: Evaluator(
            executor,
            split=split,
            vocabulary=data.vocabulary,
            batch_size=config.train.evaluation_batch_size or config.train.batch_size,
            batch_size_option="train.evaluation_batch_size",
        )
        for name, split in data.validation.items()
    }


def _load(
    config: FitConfig,
    *,
    train: Mixture,
    validation: Mapping[str, Dataset],
    vocabulary: Vocabulary,
    replicas: int,
) -> _Data:
    """Loads the data and checks that they fit configuration and devices."""
    for split in (*train.datasets, *validation.values()):
        check_records(split, vocabulary)
        _check_targets(split, train, config.objective)
    counts = token_counts(train)
    if config.model.init_output_bias and counts is None:
        raise UsageError(
            f"--model.init_output_bias needs the token counts of {train.path}/statistics.json, which does not exist"
        )
    check_batch_size(
        config.train.batch_size,
        replicas,
        "train.batch_size",
        accumulation=config.train.accumulation,
    )
    rows = RowStream(
        data=train,
        batch_size=config.train.batch_size,
        seed=config.seed,
        window_shards=config.data.window_shards,
        vocab_size=vocabulary.size,
        micro_batch_starts=config.train.micro_batch_starts,
    )
    return _Data(
        rows=rows,
        validation=validation,
        vocabulary=vocabulary,
        token_counts=counts,
        # The counts are those of all tokens, not of the targets.
        baselines={}
        if counts is None or LOSS_MASK in train.features
        else {"unigram entropy": unigram_entropy(counts, vocabulary, config.objective)},
    )


def _check_targets(split: Dataset, train: Mixture, objective: ObjectiveName) -> None:
    """Refuses a dataset of conversations for another objective, and beside datasets of texts."""
    if LOSS_MASK in split.features and objective != "clm":
        raise UsageError(
            f"{split.path}: has {LOSS_MASK}, which marks the tokens that a causal model learns; use --objective clm, "
            "or prepare the texts without --content conversation"
        )
    if (LOSS_MASK in split.features) != (LOSS_MASK in train.features):
        has = "has" if LOSS_MASK in split.features else "lacks"
        raise UsageError(
            f"{split.path}: {has} {LOSS_MASK}, unlike the training data, so the losses could not be compared; prepare "
            "both with --content conversation, or neither"
        )


def _build(config: FitConfig, *, data: _Data, folder: RunFolder, devices: Devices) -> Task:
    """Builds the task in its initial state, which a continued run replaces with its newest checkpoint."""
    train = data.rows.data
    with devices.scope():
        task = build_task(
            config,
            vocabulary=data.vocabulary,
            max_length=train.max_length,
            target=devices.target,
            token_counts=data.token_counts if config.model.init_output_bias else None,
            initial=devices.initial,
            first_rows=source_first_rows(train),
        )
    if config.model.init_from is not None and not Checkpoints(folder.checkpoints).steps():
        load_weights(
            task.objective.model.network,
            config.model.init_from,
            family=FAMILIES[config.model.type],
            vocabulary=data.vocabulary,
            initial=devices.initial,
        )
    if task.average is not None:
        task.average.start(devices.initial)
    return task


def _check_kernel(model: LanguageModel, devices: Devices, *, max_length: int) -> None:
    """Compares the attention kernel, if the model uses one, with plain attention on the devices."""
    target, computation = devices.target, model.computation
    if computation.kernel is None:
        return
    difference = check_attention_kernel(
        devices.run,
        architecture=model.network.architecture,
        kernel=computation.kernel,
        dtype=computation.dtype,
        length=max_length,
        division=target.division,
    )
    _log.info(f"fit: the attention kernel matches plain attention on this device, to {difference:.2%}")


def _figures(
    config: FitConfig, task: Task, devices: Devices, executor: StepExecutor, train: Mixture
) -> ModelFigures:
    peak_flops = devices.peak_flops(bfloat16=config.train.precision == "mixed_bfloat16")
    return ModelFigures(
        parameters=sum(weight.shape.num_elements() for weight in task.weights.values()),
        flops_per_row=training_flops_per_row(
            task.objective.model.network.architecture,
            max_length=train.max_length,
            predicted=task.objective.predicted_positions,
        ),
        peak_flops=peak_flops,
        speed=_speed(devices, executor, peak_flops),
    )


def _speed(devices: Devices, executor: StepExecutor, peak_flops: float | None) -> Speed | None:
    if peak_flops is not None:
        return accelerator_speed(peak_flops)
    # Processes may share CPUs.
    return cpu_speed() if devices.is_cpu and executor.processes == 1 else None
