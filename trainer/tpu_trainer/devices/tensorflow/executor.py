"""Executes steps with tf.function and tf.distribute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_trainer.data.batches import DatasetFunction
from tpu_trainer.devices.executor import StepExecutor, StepOutput
from tpu_trainer.devices.tensorflow.strategy import is_tpu
from tpu_trainer.network.objectives import Batch, BatchSums
from tpu_trainer.runs.checkpoint import State, named_variables
from tpu_trainer.runs.parts import Parts, StoredArray, whole_parts
from tpu_trainer.step.results import NonFinite, RunningSums
from tpu_trainer.step.task import Task


class TensorFlowExecutor(StepExecutor):
    """Executes a task in the replicas of a tf.distribute strategy."""

    def __init__(
        self,
        task: Task,
        strategy: tf.distribute.Strategy,
        *,
        state: State | None = None,
        steps_per_call: int = 1,
        deterministic: bool = False,
    ) -> None:
        """
        Args:
            task: Built in the strategy's scope.
            strategy: The devices.
            state: The part of the task's state to hold; None: all.
            steps_per_call: Most steps in a call of `train`.
            deterministic: Whether TensorFlow is restricted to deterministic operations.
        """
        self.replicas = strategy.num_replicas_in_sync
        self._task = task
        self._named = named_variables(state or task.state())
        self._strategy = strategy
        self._deterministic = deterministic
        step: Callable[[Batch], Any] = partial(replica_step, task)
        if self.replicas == 1 and not is_tpu(strategy):
            # XLA always compiles TPU programs; for several other devices, the task compiles its own part.
            step = tf.function(step, jit_compile=True, autograph=False)
        self._replica_step = step
        self._loops = steps_per_call > 1
        self.train_function = tf.function(self._loop if self._loops else self._step, autograph=False)
        """The compiled training step, or loop of steps."""
        self._compiled_sums = tf.function(
            task.evaluation_sums, jit_compile=None if is_tpu(strategy) else True, autograph=False
        )
        self._compiled_row_sums = tf.function(
            task.row_sums, jit_compile=None if is_tpu(strategy) else True, autograph=False
        )
        self._row_sums = tf.function(self._summed_row_sums, autograph=False)
        self.evaluation_function = tf.function(self._evaluation_sums, autograph=False)
        """The compiled evaluation step."""

    def distribute(self, rows: DatasetFunction) -> Iterable[Any]:
        return self._strategy.distribute_datasets_from_function(rows)

    def train(self, batches: Iterator[Any], steps: range) -> StepOutput:
        # The profiler groups operations by these steps.
        with (
            self._strategy.scope(),
            tf.profiler.experimental.Trace("train", step_num=steps.stop - 1, _r=1),
        ):
            count = (tf.constant(len(steps)),) if self._loops else ()
            return StepOutput(self.train_function(batches, *count))

    def _step(self, batches: Any) -> tf.Tensor:
        """Executes a step; returns the seconds it waited for its batch, float64."""
        start_time = self._now()
        with tf.control_dependencies([start_time]):
            batch = next(batches)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            waited = self._now() - start_time
        self._strategy.run(self._replica_step, args=(batch,))
        return waited

    def _loop(self, batches: Any, steps: tf.Tensor) -> tf.Tensor:
        def step(index: tf.Tensor, waited: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, waited + self._step(batches)

        start = (tf.constant(0), tf.zeros([], tf.float64))
        return tf.while_loop(lambda index, _: index < steps, step, start)[1]

    def _now(self) -> tf.Tensor:
        if not self._deterministic:
            return tf.timestamp()
        # TensorFlow rejects tf.timestamp as not deterministic.
        now = tf.numpy_function(time.time, [], tf.float64)
        now.set_shape([])
        return now

    def evaluate(self, batch: Any) -> BatchSums:
        return BatchSums(*(float(value) for value in self.evaluation_function(batch)))

    def _evaluation_sums(self, batch: Any) -> list[tf.Tensor]:
        def one_replica(batch: Batch) -> list[tf.Tensor]:
            # Not a tf.function: MirroredStrategy would compile it for all replicas together.
            return list(self._compiled_sums(batch))

        per_replica = self._strategy.run(one_replica, args=(batch,))
        return [self._strategy.reduce(tf.distribute.ReduceOp.SUM, value, axis=None) for value in per_replica]

    def row_sums(self, batch: Any, count: int) -> np.ndarray:
        return self._row_sums(batch, count).numpy()

    def _summed_row_sums(self, batch: Any, count: int) -> tf.Tensor:
        per_replica = self._strategy.run(lambda part: self._compiled_row_sums(part, count), args=(batch,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        average = self._task.average
        return nullcontext() if average is None else average.in_place()

    def sums(self) -> RunningSums:
        return RunningSums.of_values(self._task.running.numpy().tolist())

    def clear_sums(self) -> None:
        self._task.running.assign(tf.zeros_like(self._task.running))

    def non_finite(self) -> NonFinite | None:
        return self._task.non_finite()

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(variable.shape.as_list()) for name, variable in self._named.items()}

    def state(self) -> Parts:
        return whole_parts({name: variable.numpy() for name, variable in self._named.items()})

    def load_state(self, values: Iterable[tuple[str, np.ndarray | StoredArray]]) -> None:
        for name, value in values:
            self._named[name].assign(value[...])

    def profile(self, folder: str) -> AbstractContextManager[None]:
        return tf.profiler.experimental.Profile(folder)


def replica_step(task: Task, batch: Batch) -> dict[str, tf.Tensor]:
    """Makes a training step in one replica; tf.distribute sums over the replicas."""
    return task.step(batch, all_reduce=_all_reduce)


def _all_reduce(values: list[Any]) -> list[Any]:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)
