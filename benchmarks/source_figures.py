"""Measures what the loss, accuracy and tokens of each source of a mixture cost a training step.

    trainer/.venv/bin/python benchmarks/source_figures.py [--config tiny-clm …] [--sources 1 3 16] [--core 0]

Prints a Markdown table: for each configuration and number of sources, the CPU milliseconds of a step, the median of the
rounds, and the median over the rounds of its ratio to the step with one source, which has no such figures. The steps
take turns in one process on one core. Rows are random tokens, each from a random source.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "trainer")]

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from measure import table  # noqa: E402

from tpu_trainer.config import FitConfig  # noqa: E402
from tpu_trainer.data.vocabulary import Vocabulary  # noqa: E402
from tpu_trainer.training.build import build_task  # noqa: E402
from tpu_trainer.verbs.command_line import parse  # noqa: E402

ROWS_OF_A_SOURCE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", nargs="+", default=["tiny-clm", "tiny-mlm"])
    parser.add_argument("--sources", nargs="+", type=int, default=[1, 3, 16])
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    size = args.vocab_size
    vocabulary = Vocabulary(size=size, special_ids=(0, 1, 2, 3), pad_id=0, mask_id=3, bos_id=1, eos_id=2)
    lines = []
    for name in args.config:
        words = ["--config", name, "--data.train", "train", "--output_dir", "run"]
        config = parse(["fit", *words, "--train.batch_size", str(args.batch_size)])[1]
        steps = [
            step_of(config, vocabulary, max_length=args.max_length, sources=sources)
            for sources in args.sources
        ]
        times = measure(steps, args.rounds)
        for sources, seconds in zip(args.sources, times, strict=True):
            ratios = [own / one for own, one in zip(seconds, times[0], strict=True)]
            lines.append(
                [
                    f"`{name}`",
                    str(sources),
                    f"{1e3 * statistics.median(seconds):.1f}",
                    f"{statistics.median(ratios):.3f}",
                ]
            )
    print(f"{args.batch_size} rows of {args.max_length} tokens, a vocabulary of {size:,}\n")
    print(table(["configuration", "sources", "step, CPU ms", "ratio"], lines))


def step_of(
    config: FitConfig, vocabulary: Vocabulary, *, max_length: int, sources: int
) -> Callable[[], object]:
    """Returns the compiled training step of a configuration on rows of so many sources."""
    rows = config.train.batch_size
    random = np.random.default_rng(0)
    batch = {
        "input_ids": tf.constant(random.integers(4, vocabulary.size, (rows, max_length)), tf.int32),
        "row": tf.constant(random.integers(0, sources * ROWS_OF_A_SOURCE, rows), tf.int32),
    }
    task = build_task(
        config,
        vocabulary=vocabulary,
        max_length=max_length,
        first_rows=[ROWS_OF_A_SOURCE * number for number in range(sources)] if sources > 1 else (),
    )
    compiled = tf.function(
        lambda: task.step(batch, all_reduce=lambda sums: sums), jit_compile=True, autograph=False
    )
    return lambda: compiled()["loss"].numpy()


def measure(steps: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Returns the CPU seconds of each step in each round, without the first ones, which compile."""
    for step in steps:
        step()
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, seconds in zip(steps, times, strict=True):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
    return times


if __name__ == "__main__":
    main()
