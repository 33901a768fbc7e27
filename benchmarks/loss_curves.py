"""Trains tiny-mlm and tiny-clm on a dataset and plots their losses with unigram and bigram baselines.

    trainer/.venv/bin/python benchmarks/loss_curves.py --dataset OUT --output curves

OUT is a dataset of `prepare` with splits train and validation. Each model takes about ten minutes of two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from tokenmill_reader import Dataset
from tpu_trainer.data.dataset import open_split
from tpu_trainer.runs.loss_picture import loss_picture

STEPS = {"tiny-mlm": 7000, "tiny-clm": 3300}
# For absolute discounting: about the best value in Chen and Goodman, "An empirical study of smoothing
# techniques" (1999).
DISCOUNT = 0.75


def token_ids(split: Dataset) -> np.ndarray:
    """Returns the ids of a split without padding, int64[rows, max_length]."""
    return split[:]["input_ids"].astype(np.int64)


def entropy(counts: np.ndarray) -> float:
    """Returns the entropy of the distribution of `counts`, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def baselines(train: Dataset, validation: Dataset) -> dict[str, float]:
    """Returns the entropies of the training split and the validation loss of a bigram model, in nats per token."""
    size = int(train.manifest["tokenizer"]["vocab_size"])
    rows, held_out = token_ids(train), token_ids(validation)
    unigrams = np.bincount(rows.ravel(), minlength=size)
    pairs, counts = np.unique(rows[:, :-1].astype(np.int64) * size + rows[:, 1:], return_counts=True)
    firsts = np.bincount(pairs // size, weights=counts, minlength=size)
    found = {"unigram entropy": entropy(unigrams), "bigram entropy": entropy(counts) - entropy(firsts)}
    # The loss on held-out text of a bigram model with absolute discounting.
    kinds = np.bincount(pairs // size, minlength=size)
    wanted = held_out[:, :-1] * size + held_out[:, 1:]
    place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    seen = np.where(pairs[place] == wanted, counts[place], 0)
    before = np.maximum(firsts[held_out[:, :-1]], 1)
    unigram = (unigrams[held_out[:, 1:]] + 1) / (unigrams.sum() + size)
    left = np.where(kinds[held_out[:, :-1]] > 0, DISCOUNT * kinds[held_out[:, :-1]] / before, 1.0)
    probability = np.maximum(seen - DISCOUNT, 0) / before + left * unigram
    found["bigram, held out"] = float(-np.log(probability).mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", type=Path, required=True, help="folder with train/ and validation/")
    parser.add_argument("--output", type=Path, required=True, help="folder for the runs and the plots")
    args = parser.parse_args()
    train, validation = (open_split(str(args.dataset / name)) for name in ("train", "validation"))
    levels = baselines(train, validation)
    print("\n".join(f"{name}: {value:.3f} nats" for name, value in levels.items()), flush=True)
    for name, steps in STEPS.items():
        run = args.output / name
        command = [
            sys.executable, "-m", "tpu_trainer", "fit", "--config", name, "--output_dir", run,
            "--data.train", train.path, "--data.validation", validation.path, "--train.steps", steps,
            "--train.evaluate_every", steps // 10, "--train.log_every", 50,
        ]  # fmt: skip
        subprocess.run([str(word) for word in command], check=True)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        title = f"{name}, {steps} steps"
        (args.output / f"{name}.svg").write_text(loss_picture(records, title=title, baselines=levels))
        summary = json.loads((run / "summary.json").read_text())
        print(
            f"{name}: validation loss {summary['eval']['loss']:.3f}, {summary['tokens_per_second']:,} tokens/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
