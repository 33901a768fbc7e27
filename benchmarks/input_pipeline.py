"""Compares the input pipelines of the trainer and the Keras example on the same shards, in one run.

    trainer/.venv/bin/python benchmarks/input_pipeline.py --data OUT/train [--batch_size 256] [--rounds 3]

Prints a Markdown table: rows/s over an epoch, from the start of the pipeline to its last batch, the ratio to the
example, CPU time per row, and seconds until the first batch. The pipelines take turns; the figures are medians of the
rounds. The shards need an attention_mask, which the example reads. Neither masks: the trainer does so on the device,
and the example's collator is not in transformers 5.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "trainer")]

import tensorflow as tf  # noqa: E402
from measure import table  # noqa: E402
from peers.keras_input import keras_example  # noqa: E402

from tokenmill_reader import Mixture  # noqa: E402
from tpu_trainer.data.batches import RowStream  # noqa: E402
from tpu_trainer.data.mixture import open_mixture  # noqa: E402


@dataclass(frozen=True)
class Epoch:
    """The times of one epoch, in seconds."""

    seconds: float
    first_batch: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="a split's folder, as `prepare` writes it")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    data = open_mixture({args.data: None})
    split = data.datasets[0]
    if "attention_mask" not in split.features:
        raise SystemExit(f"{args.data}: no attention_mask, which the Keras example needs")
    pipelines = pipelines_of(data, args.batch_size)
    batches = len(split) // args.batch_size
    found: dict[str, list[Epoch]] = {name: [] for name in pipelines}
    for _ in range(args.rounds):
        for name, make in pipelines.items():
            found[name].append(one_epoch(make, batches))
    rows = batches * args.batch_size
    megabytes = sum(Path(split.path, name).stat().st_size for name in split.names) / 1e6
    print(
        f"{len(split):,} rows of {split.max_length} tokens in {len(split.names)} shards ({megabytes:.0f} MB), "
        f"batches of {args.batch_size}, {os.cpu_count()} cores, TensorFlow {tf.__version__}\n"
    )
    speeds = {name: statistics.median(rows / e.seconds for e in epochs) for name, epochs in found.items()}
    base = next(iter(speeds.values()))
    lines = [
        [
            name,
            f"{speeds[name]:,.0f}",
            f"{speeds[name] / base:.1f}×",
            f"{statistics.median(e.cpu_seconds for e in epochs) / rows * 1e6:.0f}",
            f"{statistics.median(e.first_batch for e in epochs):.1f}",
        ]
        for name, epochs in found.items()
    ]
    print(table(["pipeline", "rows/s", "ratio", "CPU µs/row", "first batch s"], lines))


def pipelines_of(data: Mixture, batch_size: int) -> dict[str, Callable[[], tf.data.Dataset]]:
    """Returns the pipelines by name. The first one is the reference of the ratios."""
    (split,) = data.datasets
    records = [f"{split.path}/{name}" for name in split.names]

    def example() -> tf.data.Dataset:
        return keras_example(records, max_length=split.max_length, batch_size=batch_size)

    def trainer() -> tf.data.Dataset:
        stream = RowStream(data=data, batch_size=batch_size, seed=0, window_shards=16).batches(0)
        return stream(tf.distribute.InputContext())

    return {"Keras example without masking": example, "tpu_trainer": trainer}


def one_epoch(make: Callable[[], tf.data.Dataset], batches: int) -> Epoch:
    """Measures reading `batches` batches."""
    before, cpu_before = time.perf_counter(), cpu_seconds()
    iterator = iter(make())
    next(iterator)
    first = time.perf_counter() - before
    for _ in range(batches - 1):
        next(iterator)
    return Epoch(time.perf_counter() - before, first, cpu_seconds() - cpu_before)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
