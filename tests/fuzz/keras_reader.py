"""Reads splits as the Keras example of tests/end_to_end/test_keras_reader.py does, with TensorFlow only.

Each line of standard input is a JSON object `{"folder": …, "max_length": …, "to": …}`. For each, this program sums the
counts in the shards' names, parses `input_ids` and `attention_mask`, writes both to the file `to` (npz), and prints a
line: "ok" or the error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np


def read(folder: str, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns input_ids and attention_mask, int64 [records, max_length]."""
    import tensorflow as tf

    features = {
        name: tf.io.FixedLenFeature((max_length,), tf.int64) for name in ("input_ids", "attention_mask")
    }
    shards = sorted(str(path) for path in Path(folder).iterdir() if path.name.endswith(".tfrecord"))
    count = sum(int(re.search(r"-\d+-(\d+)\.tfrecord", shard).group(1)) for shard in shards)
    if not shards:
        empty = np.empty((0, max_length), np.int64)
        return empty, empty
    dataset = tf.data.TFRecordDataset(shards).apply(tf.data.experimental.assert_cardinality(count))
    dataset = dataset.batch(1 << 20).map(lambda records: tf.io.parse_example(records, features))
    batch = next(iter(dataset))
    return batch["input_ids"].numpy(), batch["attention_mask"].numpy()


def main() -> None:
    """Serves requests until standard input ends."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            ids, mask = read(asked["folder"], asked["max_length"])
            np.savez(asked["to"], ids=ids, mask=mask)
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
