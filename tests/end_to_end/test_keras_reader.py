"""The well-known Keras example for this task reads the shards unchanged.

The functions are from the Hugging Face example `examples/tensorflow/language-modeling-tpu/run_mlm.py` (Apache-2.0, The
HuggingFace Team), without its masking and batching.
"""

from __future__ import annotations

import json
import re
from pathlib import Path


def count_samples(file_list):
    num_samples = 0
    for file in file_list:
        filename = file.split("/")[-1]
        sample_count = re.search(r"-\d+-(\d+)\.tfrecord", filename).group(1)
        sample_count = int(sample_count)
        num_samples += sample_count
    return num_samples


def prepare_dataset(records, decode_fn, num_samples):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(records)
    dataset = tf.data.TFRecordDataset(dataset, num_parallel_reads=tf.data.AUTOTUNE)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_samples))
    return dataset.map(decode_fn, num_parallel_calls=tf.data.AUTOTUNE)


def test_reads_every_record_by_the_names_alone(generated_dataset: Path) -> None:
    import tensorflow as tf

    split = generated_dataset / "train"
    max_length = 64

    def decode_fn(example):
        features = {
            "input_ids": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
            "attention_mask": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
        }
        return tf.io.parse_single_example(example, features)

    records = tf.io.gfile.glob(str(split / "*.tfrecord"))
    num_samples = count_samples(records)
    tokens = count = 0
    for example in prepare_dataset(records, decode_fn, num_samples):
        assert example["input_ids"].shape == (max_length,)
        tokens += int(tf.reduce_sum(example["attention_mask"]))
        count += 1
    manifest = json.loads((split / "manifest.json").read_text())
    assert count == num_samples == manifest["num_records"]
    assert tokens == manifest["totals"]["tokens"]
