"""Shards → batches of static shape, as tf.data pipelines.

A batch is a dict of int32 tensors: input_ids, and attention_mask, position_ids and segment_ids where the shards have
them, each [batch, max_length]; and row, [batch]: the row's index in the whole split, or -1 for a row that only fills up
the last batch of an evaluation and counts for nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tpu_trainer.dataset import Split
from tpu_trainer.order import Order, Window, in_sequence
from tpu_trainer.vocabulary import Vocabulary

# What an objective may read of a record; other features are not even parsed.
_USED_FEATURES = ("input_ids", "attention_mask", "position_ids", "segment_ids")
_READ_BUFFER_BYTES = 8 << 20

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def training_batches(
    split: Split, *, batch_size: int, seed: int, window_shards: int, start_step: int
) -> DatasetFunction:
    """The endless training stream from step `start_step` on, for tf.distribute's distribute_datasets_from_function.

    Args:
        split: The training split.
        batch_size: Rows in a step, over all replicas.
        seed: Decides the order.
        window_shards: Shards read and shuffled together.
        start_step: Steps already taken; the rows they used are skipped by arithmetic.
    """

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        per_replica = context.get_per_replica_batch_size(batch_size)
        hosts = context.num_input_pipelines
        order = Order(
            counts=split.counts,
            seed=seed,
            window_shards=window_shards,
            host=context.input_pipeline_id,
            hosts=hosts,
        )
        rows = _rows(split, lambda: order.windows(start_step * (batch_size // hosts)))
        return _batches(rows, split, per_replica)

    return dataset


def records_of_step(
    split: Split, *, batch_size: int, seed: int, window_shards: int, step: int, hosts: int
) -> list[tuple[str, int]]:
    """(shard's file name, slot in it) of each row that `training_batches` delivers for step `step`, counted from 0.

    The other arguments are those of `training_batches`; `hosts` is the number of its input pipelines.
    """
    ends = np.cumsum(split.counts)
    host_batch = batch_size // hosts
    records = []
    for host in range(hosts):
        order = Order(counts=split.counts, seed=seed, window_shards=window_shards, host=host, hosts=hosts)
        rows = itertools.chain.from_iterable(w.row_ids.tolist() for w in order.windows(step * host_batch))
        for row in itertools.islice(rows, host_batch):
            shard = int(np.searchsorted(ends, row, side="right"))
            slot = row - int(ends[shard] - split.counts[shard])
            records.append((split.shards[shard].path.rsplit("/", 1)[-1], slot))
    return records


def evaluation_batches(split: Split, *, batch_size: int, vocabulary: Vocabulary) -> DatasetFunction:
    """Every row of `split` once, the last batch filled up with rows of number -1.

    Every replica of every host gets the same number of batches, so that none waits for another.
    """

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        per_replica = context.get_per_replica_batch_size(batch_size)
        hosts = context.num_input_pipelines
        counts = split.counts
        shares = [counts[np.flatnonzero(counts)[host::hosts]].sum() for host in range(hosts)]
        host_batch = batch_size // hosts
        total = -(-int(max(shares)) // host_batch) * host_batch
        rows = _rows(split, lambda: in_sequence(counts=counts, host=context.input_pipeline_id, hosts=hosts))
        missing = total - int(shares[context.input_pipeline_id])
        filler = tf.data.Dataset.from_tensors(_filler_row(split, vocabulary)).repeat(missing)
        return _batches(rows.concatenate(filler), split, per_replica)

    return dataset


def _rows(split: Split, windows: Callable[[], Iterator[Window]]) -> tf.data.Dataset:
    """(serialized record, row id) for each row, one window read ahead of its use."""

    def plan() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.int64]]:
        for window in windows():
            paths = np.array([split.shards[shard].path for shard in window.shards])
            records = sum(split.shards[shard].rows for shard in window.shards)
            yield paths, window.rows, window.row_ids, np.int64(records)

    def load(
        paths: tf.Tensor, rows: tf.Tensor, row_ids: tf.Tensor, records: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # One more than the names promise, so that a shard which holds too many is noticed, too.
        read = (
            tf.data.TFRecordDataset(paths, buffer_size=_READ_BUFFER_BYTES)
            .batch(records + 1)
            .get_single_element()
        )
        found = tf.size(read, out_type=tf.int64)
        check = tf.debugging.Assert(
            found == records,
            ["Shards hold", found, "records where their names say", records, ":", paths],
            summarize=64,
        )
        with tf.control_dependencies([check]):
            return tf.gather(read, rows), tf.cast(row_ids, tf.int32)

    vector = tf.TensorSpec([None], tf.int64)
    signature = (tf.TensorSpec([None], tf.string), vector, vector, tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(plan, output_signature=signature).map(load).prefetch(1).unbatch()


def _batches(rows: tf.data.Dataset, split: Split, batch_size: int) -> tf.data.Dataset:
    names = [name for name in _USED_FEATURES if name in split.features]
    specification = {name: tf.io.FixedLenFeature([split.max_length], tf.int64) for name in names}

    def parse(records: tf.Tensor, row_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        features = tf.io.parse_example(records, specification)
        return {name: tf.cast(value, tf.int32) for name, value in features.items()} | {"row": row_ids}

    batches = rows.batch(batch_size, drop_remainder=True).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.deterministic = True
    # Each host's share is decided here, by row; sharding it again would lose rows.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.with_options(options).prefetch(tf.data.AUTOTUNE)


def _filler_row(split: Split, vocabulary: Vocabulary) -> tuple[bytes, np.int32]:
    def feature(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value] * split.max_length))

    values = {
        name: feature((vocabulary.pad_id or 0) if name == "input_ids" else 0) for name in split.features
    }
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString(), np.int32(-1)
