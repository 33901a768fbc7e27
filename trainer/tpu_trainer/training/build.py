"""A run, from its parts to its summary."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.config import FitConfig, ObjectiveName
from tpu_trainer.data.batches import training_batches
from tpu_trainer.data.dataset import Split
from tpu_trainer.data.faults import check_records
from tpu_trainer.data.mixture import MixedOrder, Mixture
from tpu_trainer.data.vocabulary import Vocabulary, load_vocabulary
from tpu_trainer.errors import UsageError
from tpu_trainer.exports.initial_weights import load_weights
from tpu_trainer.network.attention_kernel import kernel_dtype
from tpu_trainer.network.attention_layers import recompute_attention, use_attention_kernel
from tpu_trainer.network.kernel_check import check_attention_kernel
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.model import LanguageModel, target_counts, unigram_entropy
from tpu_trainer.network.objectives import CausalLanguageModelling, MaskedLanguageModelling, Objective
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.training.average import WeightAverage
from tpu_trainer.training.cluster import cluster_from_environment
from tpu_trainer.training.evaluation import Evaluator
from tpu_trainer.training.hosts import ends_if_lost
from tpu_trainer.training.optimizer import build_optimizer
from tpu_trainer.training.run import Run, report
from tpu_trainer.training.schedule import Schedule
from tpu_trainer.training.strategy import (
    build_strategy,
    check_batch_size,
    is_tpu,
    num_hosts,
    remote_hosts,
    same_on_all_hosts,
)
from tpu_trainer.training.task import Task
from tpu_trainer.training.tpu_host import UnknownTpuError, tpu_generation
from tpu_trainer.training.utilization import peak_flops, training_flops_per_row


def build_task(
    config: FitConfig,
    *,
    vocabulary: Vocabulary,
    max_length: int,
    strategy: tf.distribute.Strategy,
    token_counts: np.ndarray | None = None,
    tpu: str | None = None,
) -> Task:
    """The task of `config`, compiled for `strategy` with its optimizer; call it in the strategy's scope.

    `token_counts` (float[vocabulary.size]), where given, make the initial output bias. `tpu` is the generation of the
    TPU that is to train with it: the attention kernel needs that.
    """
    model = LanguageModel.create(
        config.model,
        objective=config.objective,
        vocabulary=vocabulary,
        max_length=max_length,
        seed=config.seed,
        precision=config.train.precision,
    )
    if config.train.gradient_checkpointing:
        model.recompute_blocks()
    if token_counts is not None:
        model.init_output_bias(target_counts(token_counts, vocabulary, config.objective))
    if config.train.attention_kernel and tpu is not None:
        dtype = kernel_dtype(config.train.precision, tpu)
        use_attention_kernel(model.network, model.context, length=max_length, dtype=dtype)
    elif config.train.attention_kernel or config.train.recompute_attention:
        recompute_attention(model.network)
    average = None
    if config.optimizer.ema is not None:
        average = WeightAverage(of=model.network, into=model.twin(), decay=config.optimizer.ema)
    alone = strategy.num_replicas_in_sync == 1
    task = Task(
        objective=_objective(config, model, max_length),
        seed=config.seed,
        clip_norm=config.optimizer.clip_norm,
        average=average,
        accumulation=config.train.accumulation,
        compile_gradients=not alone and not is_tpu(strategy),
        deterministic=config.train.deterministic and not is_tpu(strategy),
        processes=cluster_from_environment().workers,
        skip_spikes=config.train.skip_spikes,
    )
    optimizer = build_optimizer(
        config.optimizer,
        _schedule(config),
        variables=model.network.trainable_variables,
    )
    # None, not False, on a TPU: there XLA is implied.
    task.compile(
        optimizer=optimizer,
        jit_compile=True if alone and not is_tpu(strategy) else None,
        steps_per_execution=config.train.steps_per_execution,
    )
    return task


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


def _schedule(config: FitConfig) -> Schedule:
    return Schedule(config.schedule, peak=config.optimizer.learning_rate, steps=config.train.steps)


def _baselines(train: Mixture, vocabulary: Vocabulary, objective: ObjectiveName) -> dict[str, float]:
    """Losses that a model should beat, nats per token, by name: those that the data's statistics tell."""
    statistics = train.statistics()
    if statistics is None:
        return {}
    counts = np.array(statistics["token_counts"], np.float64)
    found = {"unigram entropy": unigram_entropy(counts, vocabulary, objective)}
    if (bigram := statistics.get("bigram_entropy")) is not None:
        found["bigram entropy"] = float(bigram)
    return found


def _generation(config: FitConfig) -> str | None:
    """The generation of the TPU to train on; None, and a line on stderr, if it is unknown and only MFU needs it."""
    try:
        return tpu_generation(config.tpu)
    except UnknownTpuError as error:
        if config.train.attention_kernel:
            raise UsageError(f"--train.attention_kernel: {error}") from error
        print(f"fit: without mfu: {error}", file=sys.stderr)
        return None


def train_run(
    config: FitConfig,
    *,
    folder: RunFolder,
    train: Mixture,
    validation: Split | None,
    strategy: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
    """Trains from the newest checkpoint in `folder`, or from the beginning, to the last step.

    Returns the summary, which is also written to the folder and printed. `strategy` is made of `config` where it is
    not given. Raises UsageError where the tokenizer, the strategy or the checkpoint does not fit, and what Run.train
    raises.
    """
    # Keras warns that evaluations and saves take longer than a step: they do.
    tf.get_logger().setLevel("ERROR")
    strategy = strategy or build_strategy(config.strategy, config.tpu)
    with ends_if_lost(remote_hosts(strategy)):
        return _train_with(strategy, config, folder=folder, train=train, validation=validation)


def _train_with(
    strategy: tf.distribute.Strategy,
    config: FitConfig,
    *,
    folder: RunFolder,
    train: Mixture,
    validation: Split | None,
) -> dict[str, Any]:
    if config.train.deterministic and not is_tpu(strategy):  # a TPU repeats itself anyway
        tf.config.experimental.enable_op_determinism()
    vocabulary = load_vocabulary(train.splits[0], config.objective)
    for split in train.splits if validation is None else (*train.splits, validation):
        check_records(split, vocabulary)
    token_counts = train.token_counts()
    if config.model.init_output_bias and token_counts is None:
        raise UsageError(
            f"--model.init_output_bias needs the token counts of {train.path}/statistics.json, which is not there"
        )
    check_batch_size(
        config.train.batch_size, strategy, "train.batch_size", accumulation=config.train.accumulation
    )
    hosts, processes = num_hosts(strategy), cluster_from_environment().workers
    tpu = _generation(config) if is_tpu(strategy) else None
    # Refused here where there are too few shards for the hosts.
    MixedOrder(train, seed=config.seed, window_shards=config.data.window_shards, hosts=hosts)
    with strategy.scope():
        task = build_task(
            config,
            vocabulary=vocabulary,
            max_length=train.max_length,
            strategy=strategy,
            token_counts=token_counts if config.model.init_output_bias else None,
            tpu=tpu,
        )
    if config.train.attention_kernel and tpu is not None:
        difference = check_attention_kernel(
            strategy,
            length=train.max_length,
            causal=config.objective == "clm",
            precision=config.train.precision,
            tpu=tpu,
        )
        print(
            f"fit: the attention kernel gives what plain attention gives on this device, to {difference:.2%}",
            file=sys.stderr,
        )
    if config.model.init_from is not None and not Checkpoints(folder.checkpoints).steps():
        load_weights(task.network, config.model.init_from, vocabulary)
    if task.average is not None:
        task.average.start()
    evaluator = None
    if validation is not None:
        evaluator = Evaluator(
            task=task,
            split=validation,
            vocabulary=vocabulary,
            batch_size=config.train.evaluation_batch_size or config.train.batch_size,
            batch_size_option="train.evaluation_batch_size",
            strategy=strategy,
        )
    run = Run(
        config,
        folder=folder,
        task=task,
        schedule=_schedule(config),
        train=train,
        evaluator=evaluator,
        baselines=_baselines(train, vocabulary, config.objective),
        hosts=hosts,
        processes=processes,
    )
    if processes > 1 and not same_on_all_hosts(strategy, run.first_step):
        raise UsageError(
            f"--output_dir is {folder.path!r}: this host found step {run.first_step} there and another host a "
            "different one; all must see the same folder, on a shared disk or in a bucket"
        )
    parameters = sum(variable.shape.num_elements() for variable in task.network.trainable_variables)
    print(
        f"fit: {config.model.type} of {parameters:,} parameters, {train.num_rows:,} rows of {train.max_length} tokens, "
        f"steps {run.first_step + 1} to {config.train.steps} of {config.train.batch_size} rows on "
        f"{strategy.num_replicas_in_sync} replica(s)",
        file=sys.stderr,
    )
    for feature in task.objective.model.unheeded(train.features):
        print(
            f"fit: a model of type {config.model.type!r} does not heed the rows' {feature}", file=sys.stderr
        )

    def batches(start_step: int) -> Any:
        return strategy.distribute_datasets_from_function(
            training_batches(
                train,
                batch_size=config.train.batch_size,
                seed=config.seed,
                window_shards=config.data.window_shards,
                start_step=start_step,
            )
        )

    summary = run.train(
        batches,
        flops_per_row=training_flops_per_row(
            task.network, max_length=train.max_length, predicted=task.objective.predicted_positions
        ),
        peak_flops=peak_flops(strategy, bfloat16=config.train.precision == "mixed_bfloat16", tpu=tpu),
    )
    report(summary, folder)
    return summary
