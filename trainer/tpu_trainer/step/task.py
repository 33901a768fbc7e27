"""The train step and the evaluation step.

Replicas return sums, not means. The loss and the gradient are divided by the number of targets in the whole batch, so
that the mean is right if replicas have different numbers of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpu_trainer.network.objectives import Batch, BatchSums, Objective, Randomness
from tpu_trainer.runs.checkpoint import State
from tpu_trainer.step.average import WeightAverage
from tpu_trainer.step.optimizers.optimizer import Optimizer
from tpu_trainer.step.results import NonFinite, RunningSums, SourceSums
from tpu_trainer.step.spikes import SpikeGuard, restore


class Task:
    """The training step and its state: the weights, the optimizer, and running sums for the log."""

    def __init__(
        self,
        *,
        objective: Objective,
        weights: Mapping[str, tf.Variable],
        optimizer: Optimizer,
        seed: int,
        clip_norm: float | None,
        average: WeightAverage | None,
        accumulation: int,
        micro_batch_starts: Sequence[int] = (),
        compile_gradients: bool,
        skip_spikes: float | None = None,
        first_rows: Sequence[int] = (),
    ) -> None:
        """
        Args:
            objective: The model and its loss.
            weights: The network's variables by name, all of which are trained.
            optimizer: Built for `weights`.
            seed: Determines masks and dropout.
            clip_norm: The largest global norm of a gradient; None: no limit.
            average: The running mean of the network's weights; None: no mean.
            accumulation: Micro-batches per replica, processed one after the other.
            micro_batch_starts: The step from which each of them has rows, ascending; (): all do from the first.
            compile_gradients: Compile only the replica's part of the step with XLA. For several replicas that are not
                TPU cores: the whole step contains communication, which XLA cannot compile there.
            skip_spikes: Standard deviations above the mean from which an update is skipped; None: skip none.
            first_rows: The number of the first row of each source whose sums are logged, ascending from 0.
        """
        self.weights = weights
        self.average = average
        self.objective = objective
        self.optimizer = optimizer
        self._seed = seed
        self._clip_norm = clip_norm
        self._accumulation = accumulation
        self._micro_batch_starts = micro_batch_starts
        self._first_rows = tuple(first_rows)
        self._spikes = None if skip_spikes is None else SpikeGuard(skip_spikes)
        self._gradients = (
            tf.function(self.gradients, jit_compile=True, autograph=False)
            if compile_gradients
            else self.gradients
        )
        # Sums since the last logged step. They are in the checkpoint, so that a resumed run logs the same figures.
        self.running = self._record(tf.zeros([RunningSums.size(len(self._first_rows))]), "running_sums")
        # Stored on the device, so that no step waits for the host to check its loss.
        self.non_finite_record = (
            self._record(tf.constant(0), "non_finite_step"),
            self._record(tf.zeros([2]), "non_finite_figures"),
        )
        """The first step whose loss or gradient was not finite, 0 if there was none, and its loss and gradient norm."""

    def state(self) -> State:
        """Returns part of the checkpoint → value, for all that affects later steps or lines of the log."""
        state = {
            "network": self.weights,
            "optimizer": {"step": self.optimizer.step, **self.optimizer.slots()},
            "running": self.running,
        }
        if self.average is not None:
            state["average"] = self.average.weights
        if self._spikes is not None:
            state["spikes"] = self._spikes.state
        return state

    @staticmethod
    def _record(initial: tf.Tensor, name: str) -> tf.Variable:
        return tf.Variable(
            initial,
            trainable=False,
            name=name,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def gradients(self, batch: Batch, step: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns a replica's sums and the dense gradient of its summed loss, in the order of the weights.

        The sums are those of BatchSums and, if there are sources, float32[sources, 4], SourceSums of each. Does not
        communicate or update variables; all shapes are static.

        Args:
            batch: From batches.py.
            step: Integer scalar: previous updates.
        """
        if self._accumulation == 1:
            return self._micro_gradients(batch, step)
        # Row r goes to micro-batch r % accumulation: 6 rows in 2 micro-batches are [[0, 1], [2, 3], [4, 5]], of which
        # micro-batch 0 is the column 0, 2, 4. If devices divide the rows, each so keeps its own in every micro-batch.
        micro = {
            name: tf.reshape(values, [-1, self._accumulation, *values.shape[1:]])
            for name, values in batch.items()
        }

        def add(
            number: tf.Tensor, sums: list[tf.Tensor], gradients: list[tf.Tensor]
        ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
            micro_batch = {name: values[:, number] for name, values in micro.items()}
            micro_sums, micro_gradients = self._micro_gradients(micro_batch, step)
            sums = [a + b for a, b in zip(sums, micro_sums, strict=True)]
            return number + 1, sums, [a + b for a, b in zip(gradients, micro_gradients, strict=True)]

        # Static if it can be, for the compiler's estimates.
        count = self._accumulation
        if any(self._micro_batch_starts):
            starts = tf.constant(self._micro_batch_starts, step.dtype)
            count = tf.reduce_sum(tf.cast(starts <= step, tf.int32))
        _, sums, gradients = tf.while_loop(
            lambda number, *_: number < count,
            add,
            (
                tf.constant(0),
                self._zero_sums(),
                [tf.zeros(variable.shape) for variable in self.weights.values()],
            ),
            maximum_iterations=self._accumulation,
            parallel_iterations=1,
        )
        return sums, gradients

    def _zero_sums(self) -> list[tf.Tensor]:
        of_sources = [tf.zeros([len(self._first_rows), len(SourceSums._fields)])] if self._first_rows else []
        return [*(tf.zeros([]) for _ in BatchSums._fields), *of_sources]

    def _micro_gradients(self, batch: Batch, step: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            sums, of_sources = self.objective.sums_by_source(
                batch, Randomness(self._seed, step, training=True), self._first_rows
            )
        gradients = tape.gradient(sums.loss, list(self.weights.values()))
        unused = [name for name, gradient in zip(self.weights, gradients, strict=True) if gradient is None]
        if unused:
            raise RuntimeError(f"no gradient reaches {unused}: the loss does not depend on them")
        # Dense, because the norm would count the slices of a tied or repeated embedding more than once.
        all_sums = [*sums, of_sources] if self._first_rows else [*sums]
        return all_sums, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def step(self, batch: Batch, *, all_reduce: Callable[[list[Any]], list[Any]]) -> dict[str, tf.Tensor]:
        """Makes the optimizer step of one replica. compile-check compiles it with its own `all_reduce`.

        Args:
            batch: This replica's rows, from batches.py.
            all_reduce: Sums a nest of tensors over all replicas.
        """
        sums, gradients = self._gradients(batch, self.optimizer.step)
        sums, gradients = all_reduce([sums, gradients])
        count = len(BatchSums._fields)
        sums, of_sources = BatchSums(*sums[:count]), sums[count:]
        divisor = tf.maximum(sums.targets, 1.0)  # for batches without targets
        gradients = [gradient / divisor for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self._clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, use_norm=norm)
        loss = sums.loss / divisor
        self._note_non_finite(loss, norm)
        skipped = self._update(gradients, loss)
        additions = [*sums, norm, tf.ones([]), skipped]
        self.running.assign_add(
            tf.concat([tf.stack(additions), *(tf.reshape(each, [-1]) for each in of_sources)], axis=0)
        )
        if self.average is not None:
            self.average.update(self.optimizer.step)
        running = RunningSums.of_values(tf.unstack(self.running))
        targets = tf.maximum(running.targets, 1.0)
        return {"loss": running.loss / targets, "accuracy": running.correct / targets}

    def _update(self, gradients: list[tf.Tensor], loss: tf.Tensor) -> tf.Tensor:
        """Applies the gradients unless `loss` is a spike; returns the number of skipped updates (float32, 0 or 1)."""
        if self._spikes is None:
            self.optimizer.apply(gradients)
            return tf.zeros([])
        spike = self._spikes.is_spike(loss)
        # The step counter still advances, because the batch is used up.
        variables = [*self.weights.values(), *self.optimizer.slots().values()]
        values = [tf.identity(variable) for variable in variables]
        self.optimizer.apply(gradients)
        restore(variables, values, where=spike)
        return tf.cast(spike, tf.float32)

    def _note_non_finite(self, loss: tf.Tensor, norm: tf.Tensor) -> None:
        """Records the current step if it is the first whose loss or gradient is not finite."""
        figures = tf.stack([loss, norm])
        known_step, known_figures = self.non_finite_record
        is_first = ~tf.reduce_all(tf.math.is_finite(figures)) & (known_step == 0)
        step = tf.cast(self.optimizer.step, tf.int32) + 1
        known_step.assign(tf.where(is_first, step, known_step))
        known_figures.assign(tf.where(is_first, figures, known_figures))

    def non_finite(self) -> NonFinite | None:
        """Returns this process's first step whose loss or gradient was not finite, if any."""
        return NonFinite.from_record(*(variable.numpy() for variable in self.non_finite_record))

    def row_sums(self, batch: Batch, count: int) -> tf.Tensor:
        """Returns a replica's part of SourceSums of each row of an evaluation batch of `count`, float32[count, 4]."""
        row = batch["row"]
        batch = batch | {"row": tf.where(row < 0, row, row % count)}
        randomness = Randomness(self._seed, tf.constant(0), training=False)
        return self.objective.sums_by_source(batch, randomness, list(range(count)))[1]

    def evaluation_sums(self, batch: Batch) -> BatchSums:
        """Returns a replica's sums over an evaluation batch. Every evaluation masks a row in the same way."""
        return self.objective.sums(batch, Randomness(self._seed, tf.constant(0), training=False))
