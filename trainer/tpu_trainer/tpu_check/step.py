"""The training step of `fit` for one replica of a topology, without data and without a TPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf
from transformers import CONFIG_MAPPING

from tokenmill_reader import Mixture
from tpu_trainer.config import FitConfig
from tpu_trainer.data.batches import RowStream
from tpu_trainer.data.mixture import open_data, source_first_rows
from tpu_trainer.data.vocabulary import Vocabulary, load_vocabulary
from tpu_trainer.data.words import Words
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.executor import check_batch_size
from tpu_trainer.network.configuration import check_model, configure
from tpu_trainer.step.task import Task
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.compiler import BatchFunction, all_reduce
from tpu_trainer.training.build import build_task
from tpu_trainer.training.model_flops import training_flops_per_row

Specs = Mapping[str, tf.TensorSpec]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The properties of the data that determine the step."""

    vocabulary: Vocabulary
    max_length: int
    specs: Callable[[int], Specs]
    """Returns the shapes of a batch with the given number of rows."""
    first_rows: Sequence[int] = ()
    """The number of the first row of each source whose sums the step computes."""


def rows_of_dataset(config: FitConfig) -> Rows:
    """Returns the rows of the datasets in `config.data`, with the shapes of their input pipeline."""
    return rows_of_mixture(config, open_data(config))


def rows_of_mixture(config: FitConfig, data: Mixture) -> Rows:
    """Returns the rows of open datasets, with the shapes of their input pipeline."""

    def specs(batch_size: int) -> Specs:
        rows = RowStream(
            data=data, batch_size=batch_size, seed=config.seed, window_shards=config.data.window_shards
        )
        return rows.batches(0)(tf.distribute.InputContext()).element_spec

    vocabulary = load_vocabulary(data.datasets[0], config.objective, tokenizer=config.data.tokenizer)
    return Rows(
        vocabulary=vocabulary,
        max_length=data.max_length,
        specs=specs,
        first_rows=source_first_rows(data),
    )


def rows_without_dataset(config: FitConfig, *, vocab_size: int | None, max_length: int | None) -> Rows:
    """Returns rows as `prepare` writes them. Sizes that are None are the model type's defaults.

    Raises:
        UsageError: If the model type is unknown or has no default length.
    """
    check_model(config.model, config.objective)
    defaults = CONFIG_MAPPING[config.model.type]()
    pad_id = 1  # as in RoBERTa, whose positions start after the padding id
    if vocab_size is None:
        vocab_size = defaults.vocab_size
    if max_length is None:
        positions = getattr(defaults, "max_position_embeddings", None)
        if not positions:
            raise UsageError(f"--max_length is missing: the model type {config.model.type!r} has no default")
        max_length = positions
    vocabulary = Vocabulary(
        size=vocab_size,
        special_ids=(0, 1, 2, 3, 4),
        pad_id=pad_id,
        mask_id=4,
        bos_id=0,
        eos_id=2,
        words=Words.single(vocab_size),
    )

    def specs(batch_size: int) -> Specs:
        row = tf.TensorSpec([batch_size, max_length], tf.int32)
        return {"input_ids": row, "attention_mask": row, "row": tf.TensorSpec([batch_size], tf.int32)}

    return Rows(vocabulary=vocabulary, max_length=max_length, specs=specs)


def replica_rows(config: FitConfig, topology: Topology) -> int:
    """Returns the rows per replica and step.

    Raises:
        UsageError: If the replicas or their micro-batches cannot have equal numbers of rows.
    """
    rows, replicas = config.train.batch_size, topology.replicas
    accumulation = config.train.accumulation
    check_batch_size(rows, replicas, "train.batch_size", accumulation=accumulation, owner=topology.name)
    return rows // replicas


class ReplicaStep:
    """The training task of a config, and its step as a program for a given number of rows."""

    mesh = None

    def __init__(self, *, config: FitConfig, rows: Rows, topology: Topology) -> None:
        """
        Args:
            config: The configuration of `fit`. Its batch size and strategy are ignored.
            rows: The properties of the data.
            topology: The topology whose replicas the step sums over.

        Raises:
            UsageError: If there is no such model. It is built with the first program.
        """
        self._config = config
        self._rows = rows
        self._topology = topology
        self._task: Task | None = None
        configure(
            config.model, objective=config.objective, vocabulary=rows.vocabulary, max_length=rows.max_length
        )

    def program(self, replica_rows: int) -> BatchFunction:
        """Returns the step of one replica with `replica_rows` rows."""
        task = self._task_for(replica_rows)
        replicas = self._topology.replicas

        def step(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            return task.step(batch, all_reduce=lambda values: all_reduce(values, replicas))

        return BatchFunction(step, self._rows.specs(replica_rows))

    def model_flops(self, replica_rows: int) -> float:
        """Returns the model FLOPs of a replica's step."""
        return replica_rows * row_flops(self._task_for(replica_rows), self._rows.max_length)

    def _task_for(self, replica_rows: int) -> Task:
        if self._task is None:
            train = replace(self._config.train, batch_size=replica_rows, batch_ramp=0)
            self._task = build_task(
                replace(self._config, train=train),
                vocabulary=self._rows.vocabulary,
                max_length=self._rows.max_length,
                target=Target(kernel_generation=self._topology.chip.name),
                first_rows=self._rows.first_rows,
            )
        return self._task


def row_flops(task: Task, max_length: int) -> float:
    """Returns the model FLOPs of a row, by which `fit` computes its MFU."""
    objective = task.objective
    return training_flops_per_row(
        objective.model.network.architecture, max_length=max_length, predicted=objective.predicted_positions
    )
