"""Compares tokenmill-reader with other readers of the same rows, in one run.

    python -m venv /tmp/readers && /tmp/readers/bin/pip install datasets grain mosaicml-streaming tensorflow tfrecord
    /tmp/readers/bin/pip install -e reader --upgrade numpy      # a library requires an older one, which is slower
    /tmp/readers/bin/python benchmarks/readers.py --dataset OUT/train

An environment of its own, because the programs do not depend on these libraries. No lock covers it, so the table is
followed by their releases. Libraries that are not installed are skipped with a message. The rows are copied to MDS
and Arrow, as int32, and to ArrayRecord. The readers take turns, each in a process of its own. A round opens the
dataset and reads rows in batches, in the order of the shards and, where that is possible, in the trainer's order and
one by one in a random order.
Prints the shortest wall time to the first batch, without imports, and the fewest CPU seconds of the rounds for the
others (user and system time of all threads; files are in memory).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measure import table

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

Batches = Iterator[dict[str, np.ndarray]]
Reader = Callable[[np.ndarray | None], Batches]
"""Yields the batches of all rows in order; those with the numbers in int64[batches, rows]; or the single rows with the
numbers in int64[rows]."""

PACKAGES = (
    "array-record",
    "datasets",
    "grain",
    "mosaicml-streaming",
    "numpy",
    "protobuf",
    "pyarrow",
    "tensorflow",
    "tfrecord",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="the folder of a split with TFRecord shards")
    parser.add_argument("--rows", type=int, default=16384, help="rows that are read in a round")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="*", help="readers, by a part of their names")
    options = parser.parse_args()

    from tokenmill_reader import Dataset, Order

    dataset = Dataset.open(options.dataset)
    steps = min(options.rows, len(dataset)) // options.batch_size
    order = Order(dataset, batch_size=options.batch_size)
    orders = {
        "in order": np.arange(steps * options.batch_size).reshape(steps, -1),
        "shuffled": np.stack([order.rows(step) for step in range(steps)]),
        "one by one": np.random.default_rng(0).permutation(len(dataset))[: options.rows // 8],
    }
    sums = {kind: int(dataset[rows.reshape(-1)]["input_ids"].sum()) for kind, rows in orders.items()}
    found: dict[tuple[str, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        readers = {
            name: processes.enter_context(process(name, options, folder, orders))
            for name in MAKERS
            if not options.only or any(part in name for part in options.only)
        }
        for name, connection in list(readers.items()):
            if error := connection.recv():
                print(f"{name}: skipped: {error}")
                del readers[name]
        for _, kind, (name, connection) in itertools.product(range(options.rounds), orders, readers.items()):
            if kind == "in order" or name not in ONLY_IN_ORDER:
                connection.send(kind)
                measured = connection.recv()
                assert measured.total == sums[kind], f"{name} has read other rows"
                found.setdefault((name, kind), []).append(measured)
    print(f"{dataset}: {steps * options.batch_size} rows in batches of {options.batch_size}\n")
    lines = []
    for name in readers:
        cells = [name]
        for kind in orders:
            cpu = min((m.cpu_seconds for m in found.get((name, kind), ())), default=None)
            measured_rows = orders[kind][1:].size  # without the first batch, or the first row
            cells.append("–" if cpu is None else f"{cpu / measured_rows * 1e6:.1f}")
        cells.append(f"{min(m.first_seconds for m in found[name, 'in order']) * 1e3:.1f}")
        lines.append(cells)
    print(
        table(["reader", "µs of CPU per row, in order", "shuffled", "one by one", "first batch, ms"], lines)
    )
    releases = []
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            releases.append(f"{package} {importlib.metadata.version(package)}")
    print("\n" + ", ".join(releases))


class Measured(NamedTuple):
    cpu_seconds: float
    """For all batches but the first."""
    first_seconds: float
    total: int
    """The sum of the ids, to compare the rows."""


@contextlib.contextmanager
def process(
    name: str, options: argparse.Namespace, folder: str, orders: dict[str, np.ndarray]
) -> Iterator[Connection]:
    """Runs a reader in a process of its own, because the libraries' protobuf modules contradict each other."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    started = context.Process(
        target=serve, args=(theirs, name, options.dataset, folder, options.batch_size, orders), daemon=True
    )
    started.start()
    try:
        yield ours
    finally:
        started.terminate()
        started.join()


def serve(
    connection: Connection, name: str, path: str, folder: str, batch_size: int, orders: dict[str, np.ndarray]
) -> None:
    """Answers None, or why the reader is not there; then each name of an order with a `Measured`."""
    from tokenmill_reader import Dataset

    files = sorted(map(str, Path(path).glob("*.tfrecord")))
    try:
        reader = MAKERS[name](Dataset.open(path), files, folder, batch_size)
    except ImportError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        kind = connection.recv()
        wall = time.monotonic()
        batches = reader(None if kind == "in order" else orders[kind])
        total = int(next(batches)["input_ids"].sum())
        first, began = time.monotonic() - wall, time.process_time()
        for batch in itertools.islice(batches, len(orders[kind]) - 1):
            total += int(batch["input_ids"].sum())
        connection.send(Measured(time.process_time() - began, first, total))


def tokenmill(dataset, files, folder, batch_size) -> Reader:
    from tokenmill_reader import Dataset

    return by_number(lambda: Dataset.open(dataset.path), batch_size)


def tensorflow(dataset, files, folder, batch_size) -> Reader:
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([dataset.max_length], tf.int64) for name in dataset.features}
    threads = tf.data.Options()
    threads.threading.private_threadpool_size = 1
    threads.threading.max_intra_op_parallelism = 1

    def read(orders: np.ndarray | None) -> Batches:
        records = tf.data.TFRecordDataset(files).batch(batch_size)
        parsed = records.map(lambda batch: tf.io.parse_example(batch, spec)).with_options(threads)
        return parsed.as_numpy_iterator()

    return read


def tensorflow_each(dataset, files, folder, batch_size) -> Reader:
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([dataset.max_length], tf.int64) for name in dataset.features}

    def read(orders: np.ndarray | None) -> Batches:
        records = tf.data.TFRecordDataset(files)
        parsed = records.map(lambda record: tf.io.parse_single_example(record, spec))
        return parsed.batch(batch_size).as_numpy_iterator()

    return read


def grain_records(files: list[str]) -> Iterator[bytes]:
    import grain

    for file in files:
        yield from grain.experimental.TFRecordIterDataset(file)


def example_parser(features: Sequence[str]) -> Callable[[bytes], dict[str, np.ndarray]]:
    """Returns what MaxText's ParseFeatures does with a record."""
    from tensorflow.train import Example

    def parse(record: bytes) -> dict[str, np.ndarray]:
        found = Example.FromString(record).features.feature
        return {name: np.array(found[name].int64_list.value, np.int32) for name in features}

    return parse


def grain_example(dataset, files, folder, batch_size) -> Reader:
    import grain  # noqa: F401

    parse = example_parser(dataset.features)
    return lambda orders: stacked(map(parse, grain_records(files)), batch_size)


def grain_arrayrecord(dataset, files, folder, batch_size) -> Reader:
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = f"{folder}/rows.array_record"
    writer = ArrayRecordWriter(path, "group_size:1")  # as --output_format arrayrecord
    for record in grain_records(files):
        writer.write(record)
    writer.close()
    parse = example_parser(dataset.features)

    def read(orders: np.ndarray | None) -> Batches:
        source = grain.sources.ArrayRecordDataSource([path])
        rows = range(len(source)) if orders is None else orders.reshape(-1).tolist()
        return stacked((parse(source[row]) for row in rows), rows_together(orders, batch_size))

    return read


def grain_parse_example(dataset, files, folder, batch_size) -> Reader:
    """What ParseFeatures of earlier releases of MaxText does with each record that Grain reads."""
    import grain  # noqa: F401
    import tensorflow as tf

    spec = {
        name: tf.io.FixedLenSequenceFeature([], dtype=tf.int64, allow_missing=True)
        for name in dataset.features
    }

    def parse(record: bytes) -> dict[str, np.ndarray]:
        return {
            name: values.numpy() for name, values in tf.io.parse_example(tf.constant(record), spec).items()
        }

    return lambda orders: stacked(map(parse, grain_records(files)), batch_size)


def tfrecord_package(dataset, files, folder, batch_size) -> Reader:
    from tfrecord.reader import tfrecord_loader

    description = dict.fromkeys(dataset.features, "int")
    return lambda orders: stacked(
        itertools.chain.from_iterable(tfrecord_loader(file, None, description) for file in files), batch_size
    )


def mosaic(dataset, files, folder, batch_size) -> Reader:
    from streaming import MDSWriter, StreamingDataset

    kind = f"ndarray:int32:{dataset.max_length}"
    with MDSWriter(out=f"{folder}/mds", columns=dict.fromkeys(dataset.features, kind)) as writer:
        for row in dataset:
            writer.write(row)
    opened = StreamingDataset(local=f"{folder}/mds", shuffle=False, batch_size=batch_size)

    def read(orders: np.ndarray | None) -> Batches:
        rows = range(len(dataset)) if orders is None else orders.reshape(-1).tolist()
        return stacked(map(opened.__getitem__, rows), rows_together(orders, batch_size))

    return read


def hugging_face(dataset, files, folder, batch_size) -> Reader:
    import datasets

    from tokenmill_reader.adapters.huggingface import to_hf

    to_hf(dataset, f"{folder}/rows.arrow")

    rows = f"{folder}/rows.arrow"
    return by_number(lambda: datasets.Dataset.from_file(rows).with_format("numpy"), batch_size)


def by_number(open_rows: Callable[[], Any], batch_size: int) -> Reader:
    """Reads batches of numbered rows, and opens them for each round."""

    def read(orders: np.ndarray | None) -> Batches:
        opened = open_rows()
        if orders is not None:
            yield from (opened[rows] for rows in (orders.tolist() if orders.ndim == 1 else orders))
            return
        for first in range(0, len(opened), batch_size):
            yield opened[first : first + batch_size]

    return read


def rows_together(orders: np.ndarray | None, batch_size: int) -> int:
    return 1 if orders is not None and orders.ndim == 1 else batch_size


def stacked(rows: Iterator[dict[str, np.ndarray]], batch_size: int) -> Batches:
    """Yields batches of single rows."""
    while batch := list(itertools.islice(rows, batch_size)):
        yield {name: np.stack([row[name] for row in batch]) for name in batch[0]}


MAKERS = {
    "tokenmill-reader": tokenmill,
    "tf.data, tf.io.parse_example of batches": tensorflow,
    "tf.data, tf.io.parse_single_example": tensorflow_each,
    "Grain and MaxText, tf.train.Example": grain_example,
    "Grain, ArrayRecord, tf.train.Example": grain_arrayrecord,
    "Grain and earlier MaxText, tf.io.parse_example": grain_parse_example,
    "tfrecord (PyPI)": tfrecord_package,
    "MosaicML streaming (MDS)": mosaic,
    "Hugging Face datasets (Arrow, NumPy format)": hugging_face,
}
ONLY_IN_ORDER = {name for name in MAKERS if name.startswith(("tf", "Grain and"))}

if __name__ == "__main__":
    main()
