"""The input pipeline of the Keras example for masked language modelling on TPUs, as its page shows it.

https://keras.io/examples/nlp/mlm_training_tpus/: a record at a time is parsed, a buffer of 2**18 rows shuffles, and
transformers' data collator masks on the host.
"""

from __future__ import annotations

import re
from typing import Any

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


def keras_example(
    records: list[str], *, tokenizer: Any, max_length: int, batch_size: int, mask: bool
) -> tf.data.Dataset:
    """An epoch of batches. `mask` False leaves the collator out."""
    from transformers import DataCollatorForLanguageModeling

    def decode_fn(example: tf.Tensor) -> dict[str, tf.Tensor]:
        features = {
            "input_ids": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
            "attention_mask": tf.io.FixedLenFeature(dtype=tf.int64, shape=(max_length,)),
        }
        return tf.io.parse_single_example(example, features)

    data_collator = DataCollatorForLanguageModeling(
        tokenizer=tokenizer, mlm_probability=0.15, mlm=True, return_tensors="tf"
    )

    def mask_with_collator(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        special_tokens_mask = (
            ~tf.cast(batch["attention_mask"], tf.bool)
            | (batch["input_ids"] == tokenizer.cls_token_id)
            | (batch["input_ids"] == tokenizer.sep_token_id)
        )
        batch["input_ids"], batch["labels"] = data_collator.tf_mask_tokens(
            batch["input_ids"],
            vocab_size=len(tokenizer),
            mask_token_id=tokenizer.mask_token_id,
            special_tokens_mask=special_tokens_mask,
        )
        return batch

    ds = tf.data.Dataset.from_tensor_slices(records)
    ds = ds.shuffle(len(records))
    ds = tf.data.TFRecordDataset(ds, num_parallel_reads=AUTO)
    ds = ds.apply(tf.data.experimental.assert_cardinality(count_samples(records)))
    ds = ds.map(decode_fn, num_parallel_calls=AUTO)
    ds = ds.shuffle(SHUFFLE_BUFFER_SIZE)
    ds = ds.batch(batch_size, drop_remainder=True)
    if mask:
        ds = ds.map(mask_with_collator, num_parallel_calls=AUTO)
    return ds.prefetch(AUTO)
