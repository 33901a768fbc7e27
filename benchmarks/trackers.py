"""Measures what `fit --track` costs: steps after a record that a tracker gets, against those after others.

    trainer/.venv/bin/python benchmarks/trackers.py --folder FOLDER --data DATASET/train [--steps 400]

First install the trackers in trainer/.venv, with `uv pip install 'tokenmill-reader[wandb,mlflow,trackio,otlp]'`. Those
that are missing are left out. OpenTelemetry sends to OTEL_EXPORTER_OTLP_ENDPOINT and fails without a server there.

Trains a small model on the CPU with each tracker, and logs a record every 5 steps instead of 50, so that the cost
shows. Training waits until the tracker has opened its record, which takes some seconds. Every second record is kept
from it, so that neighbouring intervals differ in nothing else. Prints, for each tracker, the medians over all pairs:

- the difference of CPU and wall time in a pair, as shares of the interval without the tracker, and their standard
  errors. CPU time is that of the training process; wall time shows the tracker's process, too, if all cores are busy
- the time in which the training thread logs a record, and its share of 50 steps, the default interval
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tokenmill_reader.tracking import NAMES, problem

LOG_EVERY, DEFAULT_LOG_EVERY = 5, 50


class Interval:
    """The time after a record: from the moment when it is logged to the next one."""

    def __init__(self, *, logged: bool) -> None:
        self.logged = logged
        self.began = time.process_time(), time.perf_counter()
        self.logging_seconds = 0.0
        self.cpu = self.wall = 0.0

    def end(self) -> None:
        self.cpu, self.wall = time.process_time() - self.began[0], time.perf_counter() - self.began[1]


def train(args: argparse.Namespace) -> list[Interval]:
    """Trains with the tracker `args.only`; returns the intervals between records."""
    from tpu_trainer.__main__ import main as trainer
    from tpu_trainer.runs import tracked

    intervals: list[Interval] = []
    is_open = False
    report, show = tracked._report, tracked.TrackedRun.show

    def note(is_problem: bool, text: str) -> None:
        nonlocal is_open
        is_open = True
        report(is_problem, text)

    def show_every_second(run: Any, record: dict[str, Any], figures: dict[str, float]) -> None:
        if intervals:
            intervals[-1].end()
        logged = not (intervals and intervals[-1].logged)
        intervals.append(Interval(logged=logged))
        if logged:
            began = time.perf_counter()
            show(run, record, figures)
            intervals[-1].logging_seconds = time.perf_counter() - began
        if not is_open:  # the first record: importing the library is no cost of a record
            intervals.clear()
            while not is_open:
                time.sleep(0.1)
                for channel in run._trackers._channels.values():
                    channel._exchange()

    tracked._report, tracked.TrackedRun.show = note, show_every_second
    options = {
        "--config": "tiny-clm",
        "--data.train": args.data,
        "--output_dir": args.folder / args.only,
        "--strategy": "cpu",
        "--train.steps": args.steps,
        "--train.batch_size": args.batch_size,
        "--train.log_every": LOG_EVERY,
        "--train.tensorboard": "false",
        "--schedule.warmup_steps": 1,
        "--track": args.only,
    }
    sys.argv = ["tpu_trainer", "fit", *(str(word) for pair in options.items() for word in pair)]
    if status := trainer():
        raise SystemExit(status)
    return intervals[:-1]  # the last has not ended


def describe(name: str, intervals: list[Interval]) -> str:
    pairs = [
        pair
        for pair in zip(intervals[::2], intervals[1::2], strict=False)
        if pair[0].logged != pair[1].logged
    ]
    parts = [f"{name}: {len(pairs)} pairs of {LOG_EVERY} steps"]
    for kind in ("cpu", "wall"):
        plain = statistics.median(getattr(each, kind) for pair in pairs for each in pair if not each.logged)
        differences = [
            (getattr(a, kind) - getattr(b, kind)) * (1 if a.logged else -1) / plain for a, b in pairs
        ]
        error = 1.25 * statistics.stdev(differences) / len(pairs) ** 0.5  # of a median
        parts.append(
            f"{kind} {plain / LOG_EVERY * 1e3:.1f} ms per step {statistics.median(differences):+.2%} ± {error:.2%}"
        )
    logging = statistics.median(each.logging_seconds for each in intervals if each.logged)
    parts.append(
        f"{logging * 1e6:.0f} µs to log a record, {logging / (plain / LOG_EVERY * DEFAULT_LOG_EVERY):.4%} of "
        f"{DEFAULT_LOG_EVERY} steps"
    )
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder")
    parser.add_argument("--data", type=Path, required=True, help="a split of a dataset")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--only", choices=NAMES, help="only this tracker, in this process")
    args = parser.parse_args()
    if args.only:
        print(describe(args.only, train(args)), flush=True)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    os.environ["TRACKIO_DIR"] = str(args.folder / "trackio-files")
    for name in NAMES:
        if problem(name, folder=str(args.folder)) is None:
            subprocess.run([sys.executable, *sys.argv, "--only", name], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
