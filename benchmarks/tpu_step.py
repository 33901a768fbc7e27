"""Compares the training steps of the trainer and of Hugging Face's examples with the TPU compiler, without a TPU.

    trainer/.venv-tpu-check/bin/python benchmarks/tpu_step.py [--topologies v5e:1x1 …] [--models roberta gpt2]

Prints a Markdown table for each model: temporaries, bytes accessed, HBM traffic, FLOPs and least step time, and in
brackets the ratio of the trainer's to the peer's. The peer is the step of `run_mlm.py` and `run_clm.py` (transformers
4.57, examples/tensorflow): the model called with labels, with its own loss and `create_optimizer`, in float32, and in
bfloat16 with Keras' mixed_bfloat16. Both have the same batch and configuration, including dropout: RoBERTa-base and
GPT-2 small. A compile takes minutes; results are in compile-check's cache.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import tensorflow as tf
import tf_keras as keras
from transformers import CONFIG_MAPPING, TFAutoModelForCausalLM, TFAutoModelForMaskedLM, create_optimizer

from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, Precision, TrainConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.cache import Cache, open_cache
from tpu_trainer.tpu_check.compiler import BatchFunction, DoesNotCompile
from tpu_trainer.tpu_check.figures import figures
from tpu_trainer.tpu_check.step import ReplicaStep, rows_without_dataset

TOPOLOGIES = ("v3:1x1", "v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1")
MODELS = {
    "roberta": (TFAutoModelForMaskedLM, "mlm", 16, 512),
    "gpt2": (TFAutoModelForCausalLM, "clm", 8, 1024),
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
        _, _, rows, length = MODELS[model]
        print(f"{model}, {rows} × {length} per replica\n")
        print("| topology | step |" + "".join(f" {name} |" for name, _ in COLUMNS))
        print("|---|---|" + "--:|" * len(COLUMNS))
        for name in args.topologies:
            for precision in args.precisions:
                of_peer = None
                for step in args.steps:
                    # A separate process, because a compile does not free gigabytes of memory.
                    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                        report = process.submit(
                            report_of_step, step, model, precision, name, args.cache
                        ).result()
                    if step == "HF":
                        of_peer = report
                    values = " | ".join(cells(report, of_peer if step != "HF" else None))
                    print(f"| {name}, {precision} | {step} | {values} |", flush=True)
        print()


def report_of_step(
    step: str, model: str, precision: Precision, topology: str, cache: str | None
) -> dict[str, Any] | None:
    """Returns the report of a step; None if it does not compile."""
    try:
        return STEPS[step](model, precision, Topology.parse(topology), open_cache(cache))
    except DoesNotCompile:
        return None


def peer(model: str, precision: Precision, topology: Topology, cache: Cache) -> dict[str, Any]:
    """Returns the report of the example's step."""
    cls, _, rows, length = MODELS[model]
    # RoBERTa's positions start at 2: rows of 512 tokens need 514 positions.
    positions = length + 2 if model == "roberta" else length
    # Layers use the policy at the time of their creation.
    keras.mixed_precision.set_global_policy(precision)
    network = cls.from_config(CONFIG_MAPPING[model](max_position_embeddings=positions))
    network.build_in_name_scope()
    optimizer, _ = create_optimizer(
        init_lr=1e-4, num_train_steps=10_000, num_warmup_steps=100, weight_decay_rate=0.01
    )
    optimizer._create_all_weights(network.trainable_variables)

    def step(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(network(batch, training=True).loss)
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    # Labels cover whole rows: the masked example's collator sets the other positions to -100.
    spec = tf.TensorSpec([rows, length], tf.int32)
    program = BatchFunction(step, {"input_ids": spec, "attention_mask": spec, "labels": spec})
    report = report_of(program, topology, cache, rows=rows, length=length, model_flops=lambda: 0.0)
    keras.mixed_precision.set_global_policy("float32")
    return report


def ours(
    model: str, precision: Precision, topology: Topology, cache: Cache, **options: bool
) -> dict[str, Any]:
    """Returns the report of the trainer's step, with default options except the precision and `options` of `train`."""
    _, objective, rows, length = MODELS[model]
    config = FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective=objective,
        model=ModelConfig(type=model),
        train=TrainConfig(precision=precision, **options),
    )
    step = ReplicaStep(
        config=config,
        rows=rows_without_dataset(config, vocab_size=None, max_length=length),
        topology=topology,
    )
    return report_of(
        step.program(rows),
        topology,
        cache,
        rows=rows,
        length=length,
        model_flops=lambda: step.model_flops(rows),
    )


def report_of(
    program: BatchFunction,
    topology: Topology,
    cache: Cache,
    *,
    rows: int,
    length: int,
    model_flops: Callable[[], float],
) -> dict[str, Any]:
    """Compiles a program and returns its report."""
    result = cache.compile(program.lower(), topology)
    return figures(result, topology=topology, replica_rows=rows, max_length=length, model_flops=model_flops())


def cells(report: dict[str, Any] | None, of_peer: dict[str, Any] | None) -> list[str]:
    """Formats the figures and their ratios to the peer's."""
    if report is None:
        return ["does not compile"] + [""] * (len(COLUMNS) - 1)
    if not report["fits"]:
        return [f"does not fit: {report['hbm']['needed'] / 1e9:.2f} GB"] + [""] * (len(COLUMNS) - 1)
    if of_peer is None or not of_peer["fits"]:
        return [f"{read(report):.2f}" for _, read in COLUMNS]
    return [f"{read(report):.2f} ({read(report) / read(of_peer):.2f})" for _, read in COLUMNS]


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "HF": peer,
    "ours": ours,
    "ours, recompute_attention": functools.partial(ours, recompute_attention=True),
    "ours, attention_kernel": functools.partial(ours, attention_kernel=True),
}

if __name__ == "__main__":
    main()
