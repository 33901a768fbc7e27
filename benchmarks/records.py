"""Compares encoding rows as framed TFRecords by `prepare`, tfx_bsl's C++ encoder and tf.train.Example, in one run.

    .venv/bin/python benchmarks/records.py --data OUT/train [--rounds 15]

Encodes the rows of a split's first shard again. Prints a Markdown table of microseconds of CPU per row, including
framing and checksums, as the best of the rounds. Checks that all encoders write equal records.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import tensorflow as tf
from measure import table
from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

from beam_pipeline.dataset.encoders import encode_by_protobuf, encode_rows
from beam_pipeline.rows.blocks import RowBlock

FEATURES = ("attention_mask", "input_ids")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="a split's folder, as `prepare` writes it")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    shard = min(args.data.glob("*-00000-*.tfrecord"))
    ids = np.array([record["input_ids"] for record in records(str(shard))])
    rows, max_length = ids.shape
    block = RowBlock(ids.astype(np.uint16), np.full(rows, max_length, np.uint32))

    def ours(path: str) -> None:
        Path(path).write_bytes(encode_rows(block, features=FEATURES, max_value=int(ids.max())))

    def portable(path: str) -> None:
        Path(path).write_bytes(encode_by_protobuf(block, features=FEATURES))

    def tfx(path: str) -> None:
        mask = np.ones(ids.size, np.int64)
        lists = [pa.FixedSizeListArray.from_arrays(pa.array(values), max_length).cast(pa.large_list(pa.int64()))
                 for values in (mask, ids.astype(np.int64).ravel())]  # fmt: skip
        write(RecordBatchToExamplesEncoder().encode(pa.record_batch(lists, names=FEATURES)), path)

    def example(path: str) -> None:
        ones = [1] * max_length
        write((serialized(row, ones) for row in ids.tolist()), path)

    writers: dict[str, Callable[[str], None]] = {
        "prepare": ours,
        "prepare without a C compiler": portable,
        "tfx_bsl, TFRecordWriter": tfx,
        "tf.train.Example, TFRecordWriter": example,
    }
    with tempfile.TemporaryDirectory() as folder:
        best = {
            name: min(seconds(writer, f"{folder}/{number}") for _ in range(args.rounds))
            for number, (name, writer) in enumerate(writers.items())
        }
        first, *others = (records(f"{folder}/{number}") for number in range(len(writers)))
        if any(found != first for found in others):
            raise SystemExit("the encoders' records differ")
    print(f"{rows:,} rows of {max_length} tokens, {shard.stat().st_size / rows:.0f} bytes each\n")
    base = best["prepare"]
    lines = [[name, f"{found / rows * 1e6:.1f}", f"{found / base:.1f}×"] for name, found in best.items()]
    print(table(["encoder", "µs/row", "÷ prepare"], lines))


def serialized(row: list[int], mask: list[int]) -> bytes:
    features = {
        "attention_mask": tf.train.Feature(int64_list=tf.train.Int64List(value=mask)),
        "input_ids": tf.train.Feature(int64_list=tf.train.Int64List(value=row)),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def write(examples: object, path: str) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for record in examples:
            writer.write(record)


def seconds(writer: Callable[[str], None], path: str) -> float:
    began = time.process_time()
    writer(path)
    return time.process_time() - began


def records(path: str) -> list[dict[str, list[int]]]:
    """Parses the records of a file, independently of the order of their features."""
    found = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        found.append({name: list(features[name].int64_list.value) for name in FEATURES})
    return found


if __name__ == "__main__":
    main()
