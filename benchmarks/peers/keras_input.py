"""The input pipeline of the Keras example for masked language modelling on TPUs, as its page shows it.

https://keras.io/examples/nlp/mlm_training_tpus/: a record at a time is parsed, and a buffer of 2**18 rows shuffles. The
masks of transformers' data collator, which transformers 5 does not have, are left out.
"""

from __future__ import annotations

import re

import tensorflow as tf

AUTO = tf.data.AUTOTUNE
SHUFFLE_BUFFER_SIZE = 2**18


def count_samples(file_list: list[str]) -> int:
    """Sums the counts in the shards' names."""
    num_samples = 0
    for file in file_list:
        filename = file.split("/")[-1]
        sample_count = re.search(r"-\d+-(\d+)\.tfrecord", filename).group(1)
        num_samples += int(sample_count)
    return num_samples


def keras_example(records: list[str], *, max_length: int, batch_size: int) -> tf.data.Dataset:
    """An epoch of batches."""

    def decode_fn(example: tf.Tensor) -> dict[str, tf.Tensor]:
        features = {
            "input_ids": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
            "attention_mask": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
        }
        return tf.io.parse_single_example(example, features)

    ds = tf.data.Dataset.from_tensor_slices(records)
    ds = ds.shuffle(len(records))
    ds = tf.data.TFRecordDataset(ds, num_parallel_reads=AUTO)
    ds = ds.apply(tf.data.experimental.assert_cardinality(count_samples(records)))
    ds = ds.map(decode_fn, num_parallel_calls=AUTO)
    ds = ds.shuffle(SHUFFLE_BUFFER_SIZE)
    ds = ds.batch(batch_size, drop_remainder=True)
    return ds.prefetch(AUTO)
