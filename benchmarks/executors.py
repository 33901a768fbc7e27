"""Compares the steps of --strategy cpu and --strategy pjrt on one CPU device, in one process.

    trainer/.venv/bin/python benchmarks/executors.py --data OUT/train [--config tiny-clm]

Prints a Markdown table: CPU seconds until the first step is done (tracing, lowering and compiling; pjrt also with its
lowered program cached), and CPU milliseconds of a step, the least of the rounds, since other work on the machine only
adds to them. The executors take turns. Start-up excludes imports, what the libraries do once in a process, and building
the model.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "trainer")]

from measure import table  # noqa: E402

from tpu_trainer.config import MeshConfig, TrainingStrategyName  # noqa: E402
from tpu_trainer.data.batches import RowStream  # noqa: E402
from tpu_trainer.data.mixture import open_mixture  # noqa: E402
from tpu_trainer.data.vocabulary import load_vocabulary  # noqa: E402
from tpu_trainer.devices.executor import StepExecutor  # noqa: E402
from tpu_trainer.devices.opening import open_devices  # noqa: E402
from tpu_trainer.devices.pjrt.lowering_cache import cache_folder  # noqa: E402
from tpu_trainer.devices.pjrt.peers import Peers  # noqa: E402
from tpu_trainer.support import quiet  # noqa: E402
from tpu_trainer.training.build import build_task  # noqa: E402
from tpu_trainer.verbs.command_line import parse  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="a split's folder, as `prepare` writes it")
    parser.add_argument("--config", default="tiny-clm", help="a configuration of `fit`")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    quiet.silence_abseil()
    words = ["--config", args.config, "--data.train", args.data, "--output_dir", ""]
    _, config = parse(["fit", *words, "--train.batch_size", str(args.batch_size)])
    data = open_mixture({args.data: None})
    rows = RowStream(data=data, batch_size=args.batch_size, seed=0, window_shards=2)
    vocabulary = load_vocabulary(data.datasets[0], config.objective)

    def make(strategy: TrainingStrategyName) -> StepExecutor:
        mesh = MeshConfig(data=1) if strategy == "pjrt" else MeshConfig()
        devices = open_devices(replace(config, strategy=strategy, mesh=mesh), Peers())
        with devices.scope():
            task = build_task(
                config,
                vocabulary=vocabulary,
                max_length=data.max_length,
                target=devices.target,
                initial=devices.initial,
            )
        return devices.executor(task)

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # of lowered programs
        kinds: dict[str, TrainingStrategyName] = {
            "`--strategy cpu`": "cpu",
            "`--strategy pjrt`": "pjrt",
            "`--strategy pjrt`, cached": "pjrt",
        }
        # What the libraries do once would count as the first executor's start-up.
        for strategy in ("cpu", "pjrt"):
            first = make(strategy)
            cpu_seconds(first, iter(first.distribute(rows.batches(0))), range(1))
        for path in cache_folder("pjrt").iterdir():
            path.unlink()
        executors = {name: make(strategy) for name, strategy in kinds.items()}
        batches = {name: iter(executor.distribute(rows.batches(0))) for name, executor in executors.items()}
        starts = {name: cpu_seconds(executors[name], batches[name], range(1)) for name in executors}
        least = dict.fromkeys(executors, float("inf"))
        for number in range(args.rounds):
            steps = range(1 + number * args.steps, 1 + (number + 1) * args.steps)
            for name, executor in executors.items():
                least[name] = min(least[name], cpu_seconds(executor, batches[name], steps) / args.steps)
    base = next(iter(least.values()))
    lines = [
        [name, f"{starts[name]:.1f}", f"{1e3 * seconds:.1f}", f"{seconds / base:.2f}×"]
        for name, seconds in least.items()
    ]
    print(f"{config.model.type}, {args.batch_size} rows of {data.max_length} tokens\n")
    print(table(["executor", "start-up, CPU s", "step, CPU ms", "ratio"], lines))


def cpu_seconds(executor: StepExecutor, batches: Iterator[Any], steps: range) -> float:
    """Returns the CPU seconds of `steps`."""
    began = time.process_time()
    for step in steps:
        executor.train(batches, range(step, step + 1))
    executor.sums()  # waits
    return time.process_time() - began


if __name__ == "__main__":
    main()
