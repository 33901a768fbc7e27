"""The train step and the evaluation step.

Sums, not means, leave each replica: the loss and the gradient are divided by the number of targets in the whole batch,
so that the mean is right when replicas have different numbers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras
from transformers import TFPreTrainedModel

from tpu_trainer.call_context import CallValues
from tpu_trainer.objectives import Batch, Objective, Sums
from tpu_trainer.random_bits import step_key

# What the keys drawn from one seed are for.
_TRAINING_MASKS, _EVALUATION_MASKS, _DROPOUT = 0, 1, 2


class Running(NamedTuple):
    """What has gathered since the last line of the log, float32 scalars: sums over steps."""

    loss: tf.Tensor
    correct: tf.Tensor
    targets: tf.Tensor
    tokens: tf.Tensor
    gradient_norm: tf.Tensor
    """Global norms of the gradients, before clipping."""
    steps: tf.Tensor
    """Optimizer steps."""


class NonFinite(NamedTuple):
    """The first step of this process whose loss or gradient was not finite."""

    step: int
    """Updates made up to and with that step."""
    loss: float
    gradient_norm: float


class Task(keras.Model):
    """What `fit` runs: the network, its optimizer's step, and running sums for the log."""

    def __init__(
        self,
        *,
        objective: Objective,
        seed: int,
        clip_norm: float | None,
        average: TFPreTrainedModel | None,
        ema: float | None,
        accumulation: int,
        compile_gradients: bool,
    ) -> None:
        """
        Args:
            objective: What is learnt.
            seed: Decides masks and dropout.
            clip_norm: The largest global norm of a gradient; None: any.
            average: A network of the same shape, to hold the running mean of the weights; None: no mean.
            ema: The mean's decay.
            accumulation: Micro-batches that a replica's rows are taken in, one after the other.
            compile_gradients: Compile the replica's part of the step with XLA on its own. For several replicas that are
                not TPU cores: there the step as a whole holds communication, which XLA does not take.
        """
        super().__init__()
        self.network = objective.model.network
        self.average = average
        self._ema = ema
        self.objective = objective
        self._seed = seed
        self._clip_norm = clip_norm
        self._accumulation = accumulation
        self._gradients = (
            tf.function(self.gradients, jit_compile=True) if compile_gradients else self.gradients
        )
        # Sums since the last line of the log; in the checkpoint, so that a resumed run logs the same figures.
        self.running = self._record(tf.zeros([len(Running._fields)]), "running_sums")
        # Kept on the device, so that no step waits for the host to look at its loss: the step, then its two figures.
        self._non_finite_step = self._record(tf.constant(0), "non_finite_step")
        self._non_finite_figures = self._record(tf.zeros([2]), "non_finite_figures")

    @staticmethod
    def _record(initial: tf.Tensor, name: str) -> tf.Variable:
        return tf.Variable(
            initial,
            trainable=False,
            name=name,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def gradients(self, batch: Batch, step: tf.Tensor) -> tuple[Sums, list[tf.Tensor]]:
        """One replica's sums and the gradient of its summed loss, dense, in the order of the trainable variables.

        Nothing here communicates or updates; all shapes are static.

        Args:
            batch: As data.py gives it.
            step: Integer scalar, updates made before this one.
        """
        if self._accumulation == 1:
            return self._micro_gradients(batch, step)
        micro = {
            name: tf.reshape(values, [self._accumulation, -1, *values.shape[1:]])
            for name, values in batch.items()
        }

        def add(
            number: tf.Tensor, sums: Sums, gradients: list[tf.Tensor]
        ) -> tuple[tf.Tensor, Sums, list[tf.Tensor]]:
            more, their = self._micro_gradients(
                {name: values[number] for name, values in micro.items()}, step
            )
            sums = Sums(*(a + b for a, b in zip(sums, more, strict=True)))
            return number + 1, sums, [a + b for a, b in zip(gradients, their, strict=True)]

        _, sums, gradients = tf.while_loop(
            lambda number, *_: number < self._accumulation,
            add,
            (
                tf.constant(0),
                Sums(*(tf.zeros([]) for _ in Sums._fields)),
                [tf.zeros(variable.shape) for variable in self.network.trainable_variables],
            ),
            maximum_iterations=self._accumulation,
            parallel_iterations=1,
        )
        return sums, gradients

    def _micro_gradients(self, batch: Batch, step: tf.Tensor) -> tuple[Sums, list[tf.Tensor]]:
        context = self.objective.model.context
        call = CallValues(dropout_key=step_key(self._seed, _DROPOUT, step), row=batch["row"])
        with context.using(call), tf.GradientTape() as tape:
            sums = self.objective.sums(batch, key=step_key(self._seed, _TRAINING_MASKS, step), training=True)
        gradients = tape.gradient(sums.loss, self.network.trainable_variables)
        unused = [
            variable.name
            for variable, gradient in zip(self.network.trainable_variables, gradients, strict=True)
            if gradient is None
        ]
        if unused:
            raise RuntimeError(f"no gradient reaches {unused}: the loss does not depend on them")
        # Slices of a tied or repeated embedding would count more than once in the norm.
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def train_step(self, batch: Batch) -> dict[str, tf.Tensor]:
        """One optimizer step; called by Keras in each replica. Returns the running means for Keras' logs."""
        context = tf.distribute.get_replica_context()
        return self.step(
            batch, all_reduce=lambda values: context.all_reduce(tf.distribute.ReduceOp.SUM, values)
        )

    def step(self, batch: Batch, *, all_reduce: Callable[[list[Any]], list[Any]]) -> dict[str, tf.Tensor]:
        """The optimizer step of one replica. compile-check compiles this, with an `all_reduce` of its own.

        Args:
            batch: This replica's rows, as data.py gives them.
            all_reduce: Sums a nest of tensors over all replicas.
        """
        sums, gradients = self._gradients(batch, self.optimizer.iterations)
        sums, gradients = all_reduce([sums, gradients])
        sums = Sums(*sums)
        divisor = tf.maximum(sums.targets, 1.0)  # a batch without a target changes nothing
        gradients = [gradient / divisor for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self._clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, use_norm=norm)
        self._note_non_finite(sums.loss / divisor, norm)
        self.optimizer.apply_gradients(
            zip(gradients, self.network.trainable_variables, strict=True), skip_gradients_aggregation=True
        )
        if self.average is not None:
            self._update_average()
        self.running.assign_add(tf.stack(Running(*sums, gradient_norm=norm, steps=tf.ones([]))))
        running = Running(*tf.unstack(self.running))
        targets = tf.maximum(running.targets, 1.0)
        return {"loss": running.loss / targets, "accuracy": running.correct / targets}

    def _update_average(self) -> None:
        updates = tf.cast(self.optimizer.iterations, tf.float32)
        # Less in the beginning: as TensorFlow's ExponentialMovingAverage does with num_updates.
        share = 1 - tf.minimum(self._ema, (1 + updates) / (10 + updates))

        def update(strategy: tf.distribute.Strategy) -> None:
            for mean, variable in zip(
                self.average.trainable_variables, self.network.trainable_variables, strict=True
            ):
                strategy.extended.update(
                    mean,
                    lambda mean, value: mean.assign_add((value - mean) * share),
                    args=(variable,),
                    group=False,
                )

        # Variables of all replicas are updated from outside of them, as Keras' optimizers do it.
        tf.__internal__.distribute.interim.maybe_merge_call(update, tf.distribute.get_strategy())

    def start_average(self) -> None:
        """Makes the mean, if there is one, that of the present weights."""
        if self.average is not None:
            for mean, variable in zip(self.average.weights, self.network.weights, strict=True):
                mean.assign(variable)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """In this context the network's weights are their mean, if there is one."""
        self._swap_average()
        try:
            yield
        finally:
            self._swap_average()

    def _swap_average(self) -> None:
        if self.average is None:
            return
        for mean, variable in zip(
            self.average.trainable_variables, self.network.trainable_variables, strict=True
        ):
            kept = tf.convert_to_tensor(variable)
            variable.assign(mean)
            mean.assign(kept)

    def _note_non_finite(self, loss: tf.Tensor, norm: tf.Tensor) -> None:
        """Remembers the step under way if it is the first whose loss or gradient is not finite."""
        figures = tf.stack([loss, norm])
        first = ~tf.reduce_all(tf.math.is_finite(figures)) & (self._non_finite_step == 0)
        step = tf.cast(self.optimizer.iterations, tf.int32) + 1
        self._non_finite_step.assign(tf.where(first, step, self._non_finite_step))
        self._non_finite_figures.assign(tf.where(first, figures, self._non_finite_figures))

    def non_finite(self) -> NonFinite | None:
        """The first step of this process that went wrong; the weights are good only where there is none."""
        step = int(self._non_finite_step.numpy())
        return NonFinite(step, *self._non_finite_figures.numpy().tolist()) if step else None

    def make_train_function(self, force: bool = False) -> Callable[[Any], dict[str, tf.Tensor]]:
        """What Keras' `fit` calls: takes steps_per_execution batches from an iterator and trains on each.

        To the step's logs it adds input_wait, float64: the seconds that were spent waiting for the batches.
        """
        if self.train_function is not None and not force:
            return self.train_function
        strategy = self.distribute_strategy
        step = tf.function(self.train_step, jit_compile=True) if self.jit_compile else self.train_step

        def one(iterator: Any) -> dict[str, tf.Tensor]:
            asked = tf.timestamp()
            with tf.control_dependencies([asked]):
                batch = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                waited = tf.timestamp() - asked
            logs = strategy.run(step, args=(batch,))
            self._train_counter.assign_add(1)
            # The figures are of the whole batch: they are the same in every replica.
            return {name: strategy.experimental_local_results(value)[0] for name, value in logs.items()} | {
                "input_wait": waited
            }

        def several(iterator: Any) -> dict[str, tf.Tensor]:
            logs = {"loss": 0.0, "accuracy": 0.0, "input_wait": tf.zeros([], tf.float64)}
            for _ in tf.range(self._steps_per_execution):
                waited = logs["input_wait"]
                logs = one(iterator)
                logs["input_wait"] += waited
            return logs

        alone = int(self._steps_per_execution.numpy()) == 1
        self.train_function = tf.function(one if alone else several)
        return self.train_function

    def evaluation_sums(self, batch: Batch) -> Sums:
        """One replica's sums over an evaluation batch; a row is masked the same in every evaluation."""
        key = step_key(self._seed, _EVALUATION_MASKS, tf.constant(0))
        return self.objective.sums(batch, key=key, training=False)
