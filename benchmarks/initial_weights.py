"""Compares initial weights of GPT-2's residual projections: the trainer's scaled ones, and transformers' defaults.

    trainer/.venv/bin/python benchmarks/initial_weights.py --dataset OUT --output runs

OUT is a dataset of `prepare` with splits train and validation. Trains a small GPT-2 for each variant and seed, about
three minutes of a core each. Prints a table of the losses in nats per token, averaged over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

CONFIG = Path(__file__).resolve().parents[1] / "trainer" / "tpu_trainer" / "configs" / "tiny-clm.yaml"
# With six layers the scale is 0.29.
MODEL = {
    "model.config.n_layer": 6,
    "model.config.n_embd": 64,
    "model.config.n_head": 2,
    "train.batch_size": 16,
}
STEPS, EVERY = 400, 50
SHOWN = (50, 100, 200, 400)
# Runs the verb with transformers' weights: the trainer does not redraw those of GPT-2.
UNSCALED = """
import sys
from tpu_trainer.network import initial_weights
del initial_weights._REDRAWN["gpt2"]
from tpu_trainer.__main__ import main
sys.exit(main())
"""
VARIANTS = {"std 0.02 / √(2 · layers)": ["-m", "tpu_trainer"], "std 0.02": ["-c", UNSCALED]}


def run_folder(output: Path, number: int, seed: int) -> Path:
    """Returns the folder of a variant's run with a seed."""
    return output / f"{number}-seed-{seed}"


def losses(run: Path) -> dict[str, list[float]]:
    """Returns training and validation losses at the steps in SHOWN. Training losses are means over EVERY steps."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = {record["step"]: record["loss"] for record in records if "loss" in record}
    validation = {record["step"]: record["eval"]["loss"] for record in records if "eval" in record}
    return {
        "training": [training[step] for step in SHOWN],
        "validation": [validation[step] for step in SHOWN],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", type=Path, required=True, help="folder with train/ and validation/")
    parser.add_argument("--output", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    # UNSCALED imports TensorFlow before the verb sets this.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for seed in args.seeds:
        for number, program in enumerate(VARIANTS.values()):
            options = {"config": CONFIG} | MODEL | {
                "data.train": args.dataset / "train", "data.validation": args.dataset / "validation",
                "output_dir": run_folder(args.output, number, seed), "seed": seed, "train.steps": STEPS,
                "train.log_every": EVERY, "train.evaluate_every": EVERY, "train.checkpoint_every": STEPS,
            }  # fmt: skip
            words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
            subprocess.run([sys.executable, *program, "fit", *words], check=True, env=environment)
    rows = []
    for number, name in enumerate(VARIANTS):
        found = [losses(run_folder(args.output, number, seed)) for seed in args.seeds]
        for kind in ("training", "validation"):
            values = np.array([of_run[kind] for of_run in found])
            spread = np.ptp(values, axis=0).max()
            rows.append([name, kind, *(f"{mean:.3f}" for mean in values.mean(axis=0)), f"{spread:.3f}"])
    header = ["residual projections", "loss", *(f"step {step}" for step in SHOWN), "widest between seeds"]
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
