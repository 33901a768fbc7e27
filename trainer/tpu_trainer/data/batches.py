"""Batches of static shape, by their numbers: for training in the order of the seed, for evaluation in sequence.

A batch has int32 arrays: `input_ids`, and `attention_mask`, `position_ids`, `segment_ids` and `loss_mask` if the shards
have them, [batch, max_length]; and `row`, [batch], the row's index in the split or mixture. -1 marks padding rows,
which complete the last batch of an evaluation, or fill up the first batches of a run if they grow, and have zero
weight.

The rows of each batch follow from its number alone. So they do not depend on the processes among which it is divided,
and a run can continue with another number of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import tensorflow as tf

from tokenmill_reader import Dataset, Mixture, Order
from tpu_trainer.data.dataset import reading
from tpu_trainer.data.python_calls import PythonCalls
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.support.errors import UsageError

# The features that objectives use, in the order of a batch's arrays.
LOSS_MASK = "loss_mask"
"""The feature that marks the targets of the loss."""
_USED_FEATURES = ("input_ids", "attention_mask", "position_ids", "segment_ids", LOSS_MASK)
_AHEAD_BATCHES = 16  # whose shards are loaded in the background, if they are remote
_ROWS_PER_CHECK = 1024  # rows
_CALLS = PythonCalls()

Batch = dict[str, np.ndarray]
OwnRows = Callable[[int], np.ndarray]
"""Maps the number of rows in a batch to the indices of those to return, int64[n]."""


class DatasetFunction(Protocol):
    """Returns the batches of an input pipeline; with `own`, only these rows of each."""

    def __call__(
        self, context: tf.distribute.InputContext, own_rows: OwnRows | None = None
    ) -> tf.data.Dataset: ...


class NumberedBatches(ABC):
    """The endless batches of a dataset or mixture."""

    def __init__(self, data: Dataset | Mixture, *, batch_size: int, vocab_size: int | None) -> None:
        """
        Args:
            data: The rows.
            batch_size: Rows in a batch, over all replicas.
            vocab_size: Ids must be below it: a larger one would train another row of the embedding, or none. None: not
                checked.
        """
        self.data = data
        self.batch_size = batch_size
        self._vocab_size = vocab_size
        self._names = [name for name in _USED_FEATURES if name in data.features]
        self._error: Exception | None = None

    @abstractmethod
    def rows(self, number: int) -> np.ndarray:
        """Returns the rows of a batch, int64[batch_size]; -1 for padding rows."""

    def read(self, number: int, own_indices: np.ndarray | None = None) -> Batch:
        """Reads a batch, or only its rows with the indices `own_indices`.

        Raises:
            UsageError: If a shard cannot be read, or has an id that the tokenizer does not have.
        """
        rows = self.rows(number)
        ahead = self.rows(number + _AHEAD_BATCHES)
        if own_indices is not None:
            rows, ahead = rows[own_indices], ahead[own_indices]
        self.data.read_ahead(ahead[ahead >= 0])
        stored = rows >= 0
        with reading():
            columns = self.data[rows[stored]]
        if self._vocab_size is not None:
            _check_ids(self.data, rows[stored], columns["input_ids"], self._vocab_size)
        batch = {name: columns[name] for name in self._names}
        if not stored.all():
            for name, values in batch.items():
                batch[name] = np.full((rows.size, *values.shape[1:]), self._padding(name), values.dtype)
                batch[name][stored] = values
        return batch | {"row": rows.astype(np.int32)}

    def _padding(self, name: str) -> int:
        return 0

    def batches(self, first: int = 0) -> DatasetFunction:
        """Returns the batches from number `first` on, as the pipeline of a single process."""

        def dataset(context: tf.distribute.InputContext, own_rows: OwnRows | None = None) -> tf.data.Dataset:
            if context.num_input_pipelines != 1:
                raise ValueError(f"{context.num_input_pipelines} pipelines; each process has one of its own")
            indices = None if own_rows is None else own_rows(self.batch_size)
            count = self.batch_size if indices is None else indices.size

            @_CALLS.wrap
            def read(number: np.ndarray) -> list[np.ndarray]:
                try:
                    return list(self.read(int(number), indices).values())
                except Exception as error:
                    self._error = error  # TensorFlow keeps only its message
                    raise

            @tf.autograph.experimental.do_not_convert
            def batch(number: tf.Tensor) -> dict[str, tf.Tensor]:
                names = [*self._names, "row"]
                tensors = tf.numpy_function(read, [number], [tf.int32] * len(names))
                shapes = [[count, self.data.max_length]] * len(self._names) + [[count]]
                return {
                    name: tf.ensure_shape(tensor, shape)
                    for name, tensor, shape in zip(names, tensors, shapes, strict=True)
                }

            # One batch after the other, in a thread of its own: an `Order` is not for several threads.
            batches = tf.data.Dataset.counter(first).map(batch)
            per_replica = context.get_per_replica_batch_size(count)
            if per_replica != count:
                batches = batches.rebatch(per_replica, drop_remainder=True)
            return batches.prefetch(tf.data.AUTOTUNE)

        return dataset

    @contextmanager
    def errors_of_reading(self) -> Iterator[None]:
        """Context in which an error of reading, which TensorFlow reports as its own, is raised as it was."""
        try:
            yield
        except tf.errors.OpError as error:
            # Once raised, its traceback holds the pipeline. If it stayed here, a thread of the pipeline would free both
            # when it stores the next error, and wait for its own end.
            cause, self._error = self._error, None
            if cause is None:
                raise
            try:
                raise cause from error
            finally:
                del cause  # which its traceback holds, too


class RowStream(NumberedBatches):
    """The endless stream of training rows, cut into steps."""

    def __init__(
        self,
        *,
        data: Mixture,
        batch_size: int,
        seed: int,
        window_shards: int,
        vocab_size: int | None = None,
        micro_batch_starts: Sequence[int] = (0,),
    ) -> None:
        """
        Args:
            data: The datasets.
            batch_size: Rows in a step, over all replicas and micro-batches.
            seed: Determines the order.
            window_shards: Shards of a dataset that are read and shuffled together.
            vocab_size: See `NumberedBatches`.
            micro_batch_starts: The step from which each micro-batch has rows.
        """
        super().__init__(data, batch_size=batch_size, vocab_size=vocab_size)
        self._starts = np.asarray(micro_batch_starts)
        self._order = Order(data, seed=seed, batch_size=batch_size // self._starts.size, window=window_shards)
        data.keep_open(2 * window_shards)  # the next window is read ahead

    def rows(self, number: int) -> np.ndarray:
        """Returns the rows of a step, int64[batch_size]; -1 in micro-batches that start later.

        Row r belongs to micro-batch r % micro-batches, as in Task.
        """
        before = self._micro_batches_before(number)
        count = int((self._starts <= number).sum())
        rows = np.full((self._order.batch_size, self._starts.size), -1, np.int64)
        stream = np.concatenate([self._order.rows(before + index) for index in range(count)])
        rows[:, :count] = stream.reshape(-1, count)
        return rows.reshape(-1)

    def rows_read(self, step: int) -> np.ndarray:
        """Returns the rows of each dataset in the steps before `step`, int64[datasets]."""
        return self._order.rows_read(self._micro_batches_before(step))

    def _micro_batches_before(self, step: int) -> int:
        return int(np.maximum(step - self._starts, 0).sum())

    def records(self, step: int) -> list[tuple[str, int]]:
        """Returns (shard's file, slot in it) of each row of step `step`, counted from 0.

        The file is given by its name, or by its path if there are several datasets.
        """
        data = self.data.datasets[0] if len(self.data.datasets) == 1 else self.data
        return [data.locate(row) for row in self.rows(step).tolist() if row >= 0]


class EvaluationRows(NumberedBatches):
    """Every row of a split once, in `steps` batches; then padding rows forever."""

    def __init__(self, split: Dataset, *, batch_size: int, vocabulary: Vocabulary) -> None:
        super().__init__(split, batch_size=batch_size, vocab_size=vocabulary.size)
        self._pad_id = vocabulary.pad_id or 0
        self.steps = -(-len(split) // batch_size)
        """The number of batches that contain all rows."""

    def rows(self, number: int) -> np.ndarray:
        rows = number * self.batch_size + np.arange(self.batch_size)
        return np.where(rows < len(self.data), rows, -1)

    def _padding(self, name: str) -> int:
        return self._pad_id if name == "input_ids" else 0


def check_records(split: Dataset, vocabulary: Vocabulary) -> None:
    """Checks the first record of a split. Without a manifest, checks the whole first non-empty shard.

    Raises:
        UsageError: If records differ from the split's description, or contain ids that the tokenizer does not have.
    """
    filled = split.counts[split.counts > 0]
    end = int(filled[0]) if split.manifest is None else 1
    for start in range(0, end, _ROWS_PER_CHECK):
        rows = np.arange(start, min(start + _ROWS_PER_CHECK, end))
        with reading():
            columns = split[rows]
        _check_ids(split, rows, columns["input_ids"], vocabulary.size)


def _check_ids(data: Dataset | Mixture, rows: np.ndarray, ids: np.ndarray, vocab_size: int) -> None:
    """Raises UsageError if ids, int32[n, max_length] of the first n of these rows, are not in [0, vocab_size)."""
    if not ids.size or (ids.min() >= 0 and ids.max() < vocab_size):
        return
    wrong, column = np.argwhere((ids < 0) | (ids >= vocab_size))[0]
    name, record = data.locate(int(rows[wrong]))
    place = name if isinstance(data, Mixture) else f"{data.path}/{name}"
    raise UsageError(
        f"{place}: record {record} contains the id {ids[wrong, column]}, but the tokenizer has {vocab_size} tokens: it "
        f"is not the one that the dataset was prepared with; give the right one with --data.tokenizer"
    )
