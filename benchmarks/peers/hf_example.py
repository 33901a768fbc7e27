"""The peer: Hugging Face's example for this task, its algorithm unchanged.

After `examples/tensorflow/language-modeling-tpu/prepare_tfrecord_shards.py` of huggingface/transformers (v4.57):
tokenize with `datasets.map`, group with `sum(lists, [])`, write with `tf.train.Example`. It reads a text file instead
of a dataset of the hub, and takes the number of processes as an argument (there it is 4).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import datasets
import tensorflow as tf
from transformers import AutoTokenizer


def serialize(rows: dict[str, list[list[int]]]) -> list[bytes]:
    records = []
    for index in range(len(rows["input_ids"])):
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=rows[name][index]))
            for name in ("input_ids", "attention_mask")
        }
        records.append(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return records


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--shard_size", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    args = parser.parse_args()
    form = "json" if args.input.endswith(".jsonl") else "text"
    dataset = datasets.load_dataset(form, data_files=args.input, split="train", cache_dir=args.cache)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)

    tokenized = dataset.map(
        lambda examples: tokenizer(examples["text"]),
        batched=True,
        num_proc=args.processes,
        remove_columns=["text"],
    )

    def group_texts(examples):
        joined = {name: sum(examples[name], []) for name in examples}  # noqa: RUF017 (the peer's own way)
        total = len(joined[next(iter(examples))]) // args.max_length * args.max_length
        return {
            name: [values[first : first + args.max_length] for first in range(0, total, args.max_length)]
            for name, values in joined.items()
        }

    grouped = tokenized.map(group_texts, batched=True, batch_size=1000, num_proc=args.processes)
    Path(args.output).mkdir(parents=True)
    for shard, first in enumerate(range(0, len(grouped), args.shard_size)):
        rows = grouped[first : first + args.shard_size]
        count = len(rows["input_ids"])
        with tf.io.TFRecordWriter(str(Path(args.output, f"dataset-{shard}-{count}.tfrecord"))) as file:
            for record in serialize(rows):
                file.write(record)


if __name__ == "__main__":
    main()
