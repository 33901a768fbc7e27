"""Reads splits without the pipeline's code.

TFRecords are read as the Keras example of tests/end_to_end/test_keras_reader.py does, other formats with the libraries
of their users, or by their specifications. Each line of standard input is a JSON object
`{"folder": …, "format": …, "max_length": …, "to": …}`. For each, this program reads the split's shards, writes the
tokens of all records and their lengths to the file `to` (npz), and prints a line: "ok" or the error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.beam_pipeline import megatron


def shards(folder: Path, extension: str) -> list[str]:
    """Returns the paths of a split's shards, in order."""
    return sorted(str(path) for path in folder.iterdir() if path.name.endswith(f".{extension}"))


def parsed(records, max_length: int) -> list[np.ndarray]:
    """Returns the tokens of serialized tf.Examples, without padding."""
    import tensorflow as tf

    features = {
        name: tf.io.FixedLenFeature((max_length,), tf.int64) for name in ("input_ids", "attention_mask")
    }
    batch = tf.io.parse_example(records, features)
    return attended_tokens(batch["input_ids"].numpy(), batch["attention_mask"].numpy())


def attended_tokens(ids, masks) -> list[np.ndarray]:
    return [np.asarray(row)[np.asarray(mask) == 1] for row, mask in zip(ids, masks, strict=True)]


def read_tfrecord(folder: Path, max_length: int) -> list[np.ndarray]:
    import tensorflow as tf

    files = shards(folder, "tfrecord")
    count = sum(int(re.search(r"-\d+-(\d+)\.tfrecord", shard).group(1)) for shard in files)
    if not files:
        return []
    dataset = tf.data.TFRecordDataset(files).apply(tf.data.experimental.assert_cardinality(count))
    return parsed(next(iter(dataset.batch(1 << 20))), max_length)


def read_arrayrecord(folder: Path, max_length: int) -> list[np.ndarray]:
    from array_record.python.array_record_module import ArrayRecordReader

    records = []
    for path in shards(folder, "array_record"):
        records += parsed(ArrayRecordReader(path).read_all(), max_length)
    return records


def read_parquet(folder: Path, max_length: int | None) -> list[np.ndarray]:
    import pyarrow.parquet as pq

    records = []
    for path in shards(folder, "parquet"):
        columns = pq.read_table(path).to_pydict()
        ids = columns["input_ids"]
        records += (
            map(np.array, ids) if max_length is None else attended_tokens(ids, columns["attention_mask"])
        )
    return records


def read_mds(folder: Path, max_length: int) -> list[np.ndarray]:
    records = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        places = np.frombuffer(data, np.uint32, shard["samples"] + 1, 4)
        kinds = [np.dtype(encoding.split(":")[1]) for encoding in shard["column_encodings"]]
        for place in places[:-1].tolist():
            columns = {}
            for name, kind, size in zip(shard["column_names"], kinds, shard["column_sizes"], strict=True):
                columns[name] = np.frombuffer(data, kind, max_length, place)
                place += size
            records += attended_tokens([columns["input_ids"]], [columns["attention_mask"]])
    return records


def read_megatron(folder: Path, max_length: None) -> list[np.ndarray]:
    return [
        np.array(ids) for path in shards(folder, "bin") for ids in megatron.read(Path(path).with_suffix(""))
    ]


READERS: dict[str, Callable[[Path, int | None], list[np.ndarray]]] = {
    "tfrecord": read_tfrecord,
    "arrayrecord": read_arrayrecord,
    "parquet": read_parquet,
    "mds": read_mds,
    "megatron": read_megatron,
}


def main() -> None:
    """Serves requests until standard input ends."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            records = READERS[request["format"]](Path(request["folder"]), request["max_length"])
            all_ids = np.concatenate([np.empty(0, np.int64), *records])
            np.savez(request["to"], ids=all_ids, lengths=np.array([*map(len, records)], np.int64))
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
