"""Trains from a configuration: loads the data, builds the task, runs."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tokenmill_reader import Dataset, Mixture
from tokenmill_reader.console.elapsed import elapsed
from tpu_trainer.config import FitConfig
from tpu_trainer.data.batches import RowStream, check_records
from tpu_trainer.data.mixture import statistics, token_counts
from tpu_trainer.data.token_counts import unigram_entropy
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.devices.executor import StepExecutor, check_batch_size
from tpu_trainer.devices.pjrt.executor import PjrtExecutor
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache, cache_folder
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.pjrt.peers import Peers
from tpu_trainer.devices.strategy import build_strategy, is_tpu
from tpu_trainer.devices.tf_executor import TensorFlowExecutor
from tpu_trainer.devices.tpu_host import UnknownTpuError, tpu_generation
from tpu_trainer.devices.utilization import device_peak_flops, peak_flops, training_flops_per_row
from tpu_trainer.exports.initial_weights import load_weights
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.kernel_check import check_attention_kernel, on_first_replica
from tpu_trainer.runs.checkpoint import Checkpoints
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.step.task import Task
from tpu_trainer.support.chips import KINDS
from tpu_trainer.support.errors import UsageError
from tpu_trainer.training.build import build_task
from tpu_trainer.training.evaluation import Evaluator
from tpu_trainer.training.progress import ModelFigures
from tpu_trainer.training.run import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The data of a run."""

    rows: RowStream
    validation: Dataset | None
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
    validation: Dataset | None,
    vocabulary: Vocabulary,
    peers: Peers,
) -> dict[str, Any]:
    """Trains to the last step, from the newest checkpoint in `folder` if there is one.

    Args:
        config: The run's.
        folder: The run's.
        train: The training data.
        validation: The split to evaluate; None: no evaluation.
        vocabulary: The tokenizer's.
        peers: The processes that train together.

    Returns:
        The summary, which is also written to the folder and printed.

    Raises:
        UsageError: If the tokenizer, the strategy or the checkpoint does not fit.
        DivergedError: If the loss or the gradient is not finite.
        InterruptedRun: After a signal; the state is saved.
        NotSavedError: If the last state could not be written.
    """
    tf.get_logger().setLevel("ERROR")
    mesh = DeviceMesh(config.mesh) if config.strategy == "pjrt" else None
    # Under pjrt, TensorFlow only traces, on the CPU.
    strategy = build_strategy("cpu" if mesh else config.strategy)
    replicas = mesh.data if mesh else strategy.num_replicas_in_sync
    data = _load(
        config,
        train=train,
        validation=validation,
        vocabulary=vocabulary,
        replicas=replicas,
    )
    tpu = _mesh_generation(config, mesh) if mesh else None
    if is_tpu(strategy):
        tpu = _generation(config)
    with elapsed("fit: building the model"):
        task, initial = _build(config, data=data, folder=folder, strategy=strategy, tpu=tpu, mesh=mesh)
    executor = _executor(config, task, strategy, mesh, peers, initial)
    if config.train.attention_kernel and tpu is not None:
        difference = check_attention_kernel(
            executor.results if isinstance(executor, PjrtExecutor) else on_first_replica(strategy),
            length=train.max_length,
            causal=config.objective == "clm",
            precision=config.train.precision,
            tpu=tpu,
            groups=mesh.data if mesh else 1,
            column_groups=mesh.model if mesh else 1,
        )
        _log.info(f"fit: the attention kernel matches plain attention on this device, to {difference:.2%}")
    bfloat16 = config.train.precision == "mixed_bfloat16"
    run = Run(
        config,
        folder=folder,
        rows=data.rows,
        executor=executor,
        evaluator=_evaluator(config, data, executor),
        baselines=data.baselines,
        model=ModelFigures(
            parameters=sum(v.shape.num_elements() for v in task.network.trainable_variables),
            flops_per_row=training_flops_per_row(
                task.network, max_length=train.max_length, predicted=task.objective.predicted_positions
            ),
            peak_flops=device_peak_flops(mesh, bfloat16=bfloat16)
            if mesh
            else peak_flops(strategy, bfloat16=bfloat16, tpu=tpu),
            ignored_features=task.objective.model.ignored_features(train.features),
        ),
    )
    return run.train()


def _executor(
    config: FitConfig,
    task: Task,
    strategy: tf.distribute.Strategy,
    mesh: DeviceMesh | None,
    peers: Peers,
    initial: InitialValues,
) -> StepExecutor:
    deterministic = _deterministic(config, strategy)
    if mesh is not None:
        cache = LoweringCache(cache_folder("pjrt"))
        return PjrtExecutor(
            task,
            mesh,
            mesh=config.mesh,
            cache=cache,
            peers=peers,
            initial=initial,
            deterministic=deterministic,
        )
    return TensorFlowExecutor(
        task,
        strategy,
        steps_per_call=config.train.steps_per_execution,
        deterministic=deterministic,
    )


def _evaluator(config: FitConfig, data: _Data, executor: StepExecutor) -> Evaluator | None:
    if data.validation is None:
        return None
    return Evaluator(
        executor,
        split=data.validation,
        vocabulary=data.vocabulary,
        batch_size=config.train.evaluation_batch_size or config.train.batch_size,
        batch_size_option="train.evaluation_batch_size",
    )


def _deterministic(config: FitConfig, strategy: tf.distribute.Strategy) -> bool:
    """Whether to restrict TensorFlow to deterministic operations; TPUs are always deterministic."""
    return config.train.deterministic and not is_tpu(strategy)


def _mesh_generation(config: FitConfig, mesh: DeviceMesh) -> str | None:
    """Returns the generation of a mesh of TPUs; None for other devices, and if it is unknown and only MFU needs it."""
    if config.train.attention_kernel and mesh.platform == "tpu" and mesh.kind not in KINDS:
        raise UsageError(
            f"--train.attention_kernel: for this TPU, {mesh.kind!r}, there is no kernel; use "
            "--train.recompute_attention instead"
        )
    return KINDS.get(mesh.kind)


def _generation(config: FitConfig) -> str | None:
    """Returns the TPU's generation; None, with a line on stderr, if it is unknown and only MFU needs it."""
    try:
        return tpu_generation(config.tpu)
    except UnknownTpuError as error:
        if config.train.attention_kernel:
            raise UsageError(f"--train.attention_kernel: {error}") from error
        _log.warning(f"fit: without mfu: {error}")
        return None


def _load(
    config: FitConfig,
    *,
    train: Mixture,
    validation: Dataset | None,
    vocabulary: Vocabulary,
    replicas: int,
) -> _Data:
    """Loads the data and checks that they fit configuration and devices."""
    for split in train.datasets if validation is None else (*train.datasets, validation):
        check_records(split, vocabulary)
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
    )
    return _Data(
        rows=rows,
        validation=validation,
        vocabulary=vocabulary,
        token_counts=counts,
        baselines=_baselines(config, train, vocabulary),
    )


def _baselines(config: FitConfig, train: Mixture, vocabulary: Vocabulary) -> dict[str, float]:
    known = statistics(train)
    if known is None:
        return {}
    counts = np.array(known["token_counts"], np.float64)
    found = {"unigram entropy": unigram_entropy(counts, vocabulary, config.objective)}
    if (bigram := known.get("bigram_entropy")) is not None:
        found["bigram entropy"] = float(bigram)
    return found


def _build(
    config: FitConfig,
    *,
    data: _Data,
    folder: RunFolder,
    strategy: tf.distribute.Strategy,
    tpu: str | None,
    mesh: DeviceMesh | None,
) -> tuple[Task, InitialValues]:
    """Builds the task in its initial state, which a continued run replaces with its newest checkpoint.

    Returns:
        The task, and its variables' values: a mesh may have more memory than the host.
    """
    initial = InitialValues()
    if _deterministic(config, strategy):
        tf.config.experimental.enable_op_determinism()
    with strategy.scope(), initial.postponed() if mesh else nullcontext():
        task = build_task(
            config,
            vocabulary=data.vocabulary,
            max_length=data.rows.data.max_length,
            strategy=strategy,
            token_counts=data.token_counts if config.model.init_output_bias else None,
            tpu=tpu,
            shards=mesh.data if mesh else 1,
            column_groups=mesh.model if mesh else 1,
            initial=initial,
        )
    if config.model.init_from is not None and not Checkpoints(folder.checkpoints).steps():
        load_weights(task.network, config.model.init_from, data.vocabulary, initial)
    if task.average is not None:
        task.average.start(initial)
    return task, initial
