"""Measures the host's memory to build GPT-2 and AdamW: values at once, or postponed as by --strategy pjrt.

    trainer/.venv/bin/python benchmarks/host_memory.py [--layers 24 --hidden 1024 --heads 16]

Prints a line for each: peak resident memory after the model is built, and, if values are postponed, after each of them
was computed alone, in GB. It includes Python and TensorFlow, about 0.6 GB.
"""

from __future__ import annotations

import argparse
import os
from multiprocessing import get_context
from resource import RUSAGE_SELF, getrusage

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MAX_LENGTH, VOCABULARY = 1024, 50_257


def measure(postponed: bool, layers: int, hidden: int, heads: int) -> None:
    """Builds the task in this process and prints a line."""
    from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, TrainConfig
    from tpu_trainer.data.vocabulary import Vocabulary
    from tpu_trainer.network.initial_values import InitialValues
    from tpu_trainer.runs.checkpoint import named_variables
    from tpu_trainer.training.build import build_task

    def peak() -> float:
        return getrusage(RUSAGE_SELF).ru_maxrss / 1e6

    initial = InitialValues(postpone=postponed)
    task = build_task(
        FitConfig(
            output_dir="",
            data=DataConfig(train=""),
            objective="clm",
            model=ModelConfig(type="gpt2", config={"n_layer": layers, "n_embd": hidden, "n_head": heads}),
            train=TrainConfig(steps=1, batch_size=1),
        ),
        vocabulary=Vocabulary(
            size=VOCABULARY, special_ids=(0,), pad_id=None, mask_id=None, bos_id=0, eos_id=0
        ),
        max_length=MAX_LENGTH,
        initial=initial,
    )
    built = peak()
    total = sum(initial.value(variable).nbytes for variable in named_variables(task.state()).values())
    print(
        f"{'postponed' if postponed else 'at once'}: {total / 1e9:.1f} GB of weights and optimizer; built {built:.2f}"
        + (f", all values, one at a time {peak():.2f}" if postponed else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    options = parser.parse_args()
    for postponed in (False, True):
        sizes = (options.layers, options.hidden, options.heads)
        process = get_context("spawn").Process(target=measure, args=(postponed, *sizes))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
