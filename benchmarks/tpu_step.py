"""Compares the options of the trainer's step with the TPU compiler, without a TPU.

    trainer/.venv-tpu-check/bin/python benchmarks/tpu_step.py [--topologies v5e:1x1 …] [--models roberta gpt2]

Prints a Markdown table for each model: temporaries, bytes accessed, HBM traffic, FLOPs and least step time, and in
brackets the ratio to the step with default options. RoBERTa-base and GPT-2 small, with dropout, in float32 and in
mixed_bfloat16. A compile takes minutes; results are in compile-check's cache.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, Precision, TrainConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.cache import open_cache
from tpu_trainer.tpu_check.compiler import DoesNotCompile
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset

TOPOLOGIES = ("v3:1x1", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1")
MODELS = {"roberta": ("mlm", 16, 512), "gpt2": ("clm", 8, 1024)}
STEPS: dict[str, dict[str, Any]] = {
    "default": {},
    "recompute attention": {"recompute": "attention"},
    "recompute all": {"recompute": "all"},
    "attention_kernel": {"attention_kernel": True},
}
COLUMNS = (
    ("temporaries, GB", lambda report: report["hbm"]["temporaries"] / 1e9),
    ("bytes accessed, GB", lambda report: report["bytes_accessed"] / 1e9),
    ("to and from HBM, GB", lambda report: report["hbm_traffic"] / 1e9),
    ("TFLOP", lambda report: report["flops"] / 1e12),
    ("least step, ms", lambda report: report["roofline"]["least_step_seconds"] * 1e3),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument(
        "--cache", help="folder of the compiler's results; by default in the user's cache folder"
    )
    args = parser.parse_args()
    for model in args.models:
        _, rows, length = MODELS[model]
        print(f"{model}, {rows} × {length} per replica\n")
        print("| topology | step |" + "".join(f" {name} |" for name, _ in COLUMNS))
        print("|---|---|" + "--:|" * len(COLUMNS))
        for name in args.topologies:
            for precision in args.precisions:
                default = None
                for step in args.steps:
                    # A separate process, because a compile does not free gigabytes of memory.
                    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                        report = process.submit(
                            report_of_step, step, model, precision, name, args.cache
                        ).result()
                    if step == "default":
                        default = report
                    values = " | ".join(cells(report, default if step != "default" else None))
                    print(f"| {name}, {precision} | {step} | {values} |", flush=True)
        print()


def report_of_step(
    step: str, model: str, precision: Precision, topology: str, cache: str | None
) -> dict[str, Any] | None:
    """Returns the report of a step with default options except the precision and STEPS; None if it does not compile."""
    objective, rows, length = MODELS[model]
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=model),
        train=TrainConfig(precision=precision, **STEPS[step]),
    )
    chips = Topology.parse(topology)
    trained = ReplicaStep(
        config=config,
        rows=rows_without_dataset(config, vocab_size=None, max_length=length),
        topology=chips,
    )
    try:
        result = open_cache(cache).compile(trained.program(rows).lower(), chips)
    except DoesNotCompile:
        return None
    flops = trained.model_flops(rows)
    return figures(result, topology=chips, replica_rows=rows, max_length=length, model_flops=flops)


def cells(report: dict[str, Any] | None, default: dict[str, Any] | None) -> list[str]:
    """Formats the figures and their ratios to the default's."""
    if report is None:
        return ["does not compile"] + [""] * (len(COLUMNS) - 1)
    if not report["fits"]:
        return [f"does not fit: {report['hbm']['needed'] / 1e9:.2f} GB"] + [""] * (len(COLUMNS) - 1)
    if default is None or not default["fits"]:
        return [f"{read(report):.2f}" for _, read in COLUMNS]
    return [f"{read(report):.2f} ({read(report) / read(default):.2f})" for _, read in COLUMNS]


if __name__ == "__main__":
    main()
