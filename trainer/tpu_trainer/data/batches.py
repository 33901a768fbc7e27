"""tf.data pipelines that read shards into batches of static shape.

A batch is a dict of int32 tensors. `input_ids`, and `attention_mask`, `position_ids` and `segment_ids` if the shards
have them, are [batch, max_length]. `row`, [batch], is the row's index in the split or mixture; -1 marks padding rows,
which complete the last batch of an evaluation and have zero weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from tpu_trainer.data.dataset import Shard, Split
from tpu_trainer.data.mixture import MixedOrder, Mixture
from tpu_trainer.data.order import Window, host_shards
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.data.window_dataset import shuffled_windows, windows_in_sequence

# The features that objectives use. Others are not parsed.
_USED_FEATURES = ("input_ids", "attention_mask", "position_ids", "segment_ids")
_READ_BUFFER_BYTES = 8 << 20

OwnRows = Callable[[int], np.ndarray]
"""Maps the number of rows in a batch to the indices of those to return, int64[n]."""


class DatasetFunction(Protocol):
    """Returns the batches of an input pipeline; with `own`, only these rows of each."""

    def __call__(
        self, context: tf.distribute.InputContext, own: OwnRows | None = None
    ) -> tf.data.Dataset: ...


@dataclass(frozen=True, kw_only=True)
class RowStream:
    """The endless stream of training rows, cut into steps. Every step's rows follow from its number alone.

    Raises:
        UsageError: A dataset has fewer shards than there are hosts.
    """

    data: Mixture
    batch_size: int
    """Rows in a step, over all replicas."""
    seed: int
    """Determines the order."""
    window_shards: int
    """Shards of a dataset that are read and shuffled together."""
    hosts: int = 1
    """Input pipelines, each of which reads its own share of the rows."""
    vocab_size: int | None = None
    """Ids must be below it: a larger one would train another row of the embedding, or none. None: not checked."""

    def __post_init__(self) -> None:
        self._order(host=0)

    def _order(self, *, host: int) -> MixedOrder:
        return MixedOrder(
            self.data, seed=self.seed, window_shards=self.window_shards, host=host, hosts=self.hosts
        )

    def batches(self, start_step: int) -> DatasetFunction:
        """The batches from step `start_step` on; the rows of the steps before are skipped by arithmetic."""

        def dataset(context: tf.distribute.InputContext, own: OwnRows | None = None) -> tf.data.Dataset:
            if context.num_input_pipelines != self.hosts:
                raise ValueError(
                    f"a stream for {self.hosts} hosts has {context.num_input_pipelines} pipelines"
                )
            per_replica = context.get_per_replica_batch_size(self.batch_size)
            order = self._order(host=context.input_pipeline_id)
            position = self._position(start_step)
            streams = [
                _rows_of(split, shuffled_windows(each, start), first_row_id=first)
                for split, each, start, first in zip(
                    self.data.splits,
                    order.orders,
                    order.positions(position).tolist(),
                    order.first_row_ids.tolist(),
                    strict=True,
                )
            ]
            if len(streams) == 1:
                return _batches(streams[0], self.data.splits[0], per_replica, self.vocab_size, own)
            choices = tf.data.Dataset.from_tensor_slices(order.choices(position)).repeat()
            rows = tf.data.Dataset.choose_from_datasets([stream.unbatch() for stream in streams], choices)
            return _batches(rows.batch(per_replica), self.data.splits[0], per_replica, self.vocab_size, own)

        return dataset

    def records(self, step: int) -> list[tuple[str, int]]:
        """(shard's file, slot in it) of each row of step `step`, counted from 0.

        The file is given by its name, or by its path if there are several datasets.
        """
        records = []
        for host in range(self.hosts):
            rows = self._order(host=host).rows(self._position(step))
            for dataset, row in itertools.islice(rows, self.batch_size // self.hosts):
                split = self.data.splits[dataset]
                ends = np.cumsum(split.counts)
                shard = int(np.searchsorted(ends, row, side="right"))
                path = split.shards[shard].path
                name = path if len(self.data.splits) > 1 else path.rsplit("/", 1)[-1]
                records.append((name, row - int(ends[shard] - split.counts[shard])))
        return records

    def shards_in_use(self, step: int) -> Iterator[tuple[Split, Shard]]:
        """The shards that are read, or read ahead, at step `step`, counted from 0."""
        for host in range(self.hosts):
            for dataset, shard in self._order(host=host).shards(self._position(step)):
                split = self.data.splits[dataset]
                yield split, split.shards[shard]

    def _position(self, step: int) -> int:
        """A host's first row of step `step`."""
        return step * (self.batch_size // self.hosts)


def evaluation_steps(split: Split, *, batch_size: int, hosts: int) -> int:
    """Returns the number of batches that contain all rows of `split`, given by the host with the most rows."""
    return -(-max(_host_rows(split, hosts)) // (batch_size // hosts))


def _host_rows(split: Split, hosts: int) -> list[int]:
    counts = split.counts
    return [int(counts[host_shards(counts, host=host, hosts=hosts)].sum()) for host in range(hosts)]


def evaluation_batches(split: Split, *, batch_size: int, vocabulary: Vocabulary) -> DatasetFunction:
    """Returns every row of `split` once in the first `evaluation_steps` batches, then padding rows forever.

    So all replicas get the same number of batches, and none waits for another.
    """

    def dataset(context: tf.distribute.InputContext, own: OwnRows | None = None) -> tf.data.Dataset:
        per_replica = context.get_per_replica_batch_size(batch_size)
        windows = windows_in_sequence(
            split.counts, host=context.input_pipeline_id, hosts=context.num_input_pipelines
        )
        record, row_id = _padding_row(split, vocabulary)
        padding = tf.data.Dataset.from_tensors(
            (tf.fill([per_replica], record), tf.fill([per_replica], row_id))
        )
        rows = _rows_of(split, windows).concatenate(padding.repeat())
        return _batches(rows, split, per_replica, vocabulary.size, own)

    return dataset


def _rows_of(split: Split, windows: tf.data.Dataset, *, first_row_id: int = 0) -> tf.data.Dataset:
    """Reads serialized records, string[n], and row ids, int32[n], for each window. Prefetches one window."""
    # Captured as tensors, not embedded in the function as constants: there may be many shards.
    all_paths = tf.constant([shard.path for shard in split.shards])
    all_counts = tf.constant(split.counts)

    @tf.autograph.experimental.do_not_convert
    def load(window: Window) -> tuple[tf.Tensor, tf.Tensor]:
        paths, records = (
            tf.gather(all_paths, window.shards),
            tf.reduce_sum(tf.gather(all_counts, window.shards)),
        )
        # Read one record more than expected, to detect surplus records.
        read = (
            tf.data.TFRecordDataset(paths, buffer_size=_READ_BUFFER_BYTES)
            .batch(records + 1)
            .get_single_element()
        )
        found = tf.size(read, out_type=tf.int64)
        check = tf.debugging.Assert(
            found == records,
            ["The shards have", found, "records; their names specify", records, ":", paths],
            summarize=64,
        )
        with tf.control_dependencies([check]):
            return tf.gather(read, window.rows), tf.cast(window.row_ids + first_row_id, tf.int32)

    return windows.map(load).prefetch(1)


def _batches(
    windows: tf.data.Dataset,
    split: Split,
    batch_size: int,
    vocab_size: int | None,
    own: OwnRows | None = None,
) -> tf.data.Dataset:
    # All hosts of --strategy pjrt read all rows, so that the order does not depend on their number. Most of the work is
    # parsing, of their own rows only.
    parsed = None if own is None else own(batch_size)
    if parsed is not None and parsed.size == batch_size:
        parsed = None
    names = [name for name in _USED_FEATURES if name in split.features]
    specification = {name: tf.io.FixedLenFeature([split.max_length], tf.int64) for name in names}

    @tf.autograph.experimental.do_not_convert
    def parse(records: tf.Tensor, row_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        if parsed is not None:
            records, row_ids = tf.gather(records, parsed), tf.gather(row_ids, parsed)
        features = tf.io.parse_example(records, specification)
        if vocab_size is not None:
            ids = features["input_ids"]
            least, most = tf.reduce_min(ids), tf.reduce_max(ids)
            check = tf.debugging.Assert(
                (least >= 0) & (most < vocab_size),
                ["ids from", least, "to", most, "of", vocab_size, "tokens"],
            )
            with tf.control_dependencies([check]):
                features["input_ids"] = tf.identity(ids)
        return {name: tf.cast(value, tf.int32) for name, value in features.items()} | {"row": row_ids}

    # Rebatch windows directly: unbatching them into rows would cost more than half as much as parsing.
    batches = windows.rebatch(batch_size, drop_remainder=True).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    # TensorFlow cannot infer that the stream is infinite, because the number of windows in an epoch is a tensor. For
    # finite streams on several workers it assumes a smaller last batch, so the batch dimension would be unknown.
    batches = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    options = tf.data.Options()
    options.deterministic = True
    # The rows are already split between hosts; sharding again would lose rows.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def _padding_row(split: Split, vocabulary: Vocabulary) -> tuple[bytes, np.int32]:
    def feature(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value] * split.max_length))

    values = {
        name: feature((vocabulary.pad_id or 0) if name == "input_ids" else 0) for name in split.features
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString(), np.int32(-1)
