"""Compares a training step on a CPU with PyTorch's: eager and compiled by torch.compile.

    PYTHONPATH=trainer:reader trainer/.venv-export/bin/python benchmarks/cpu_step.py [--models llama …] [--core 0]

All three have the same weights and batches, float32, no dropout, gradients clipped to a norm of 1, and AdamW (PyTorch's
is the fused one). They take turns in one process on one core. Prints a Markdown table of the CPU seconds of a step, the
median of the rounds, and the least ratio to PyTorch's in a round. RoBERTa's step includes the choice of masks, which
PyTorch gets; its class computes the logits of all positions, and the trainer those of the targets.

torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # before TensorFlow: afterwards it cannot be imported
import torch._dynamo
import torch._inductor.compile_fx
import transformers
import transformers.masking_utils

# isort: split
import numpy as np
import tensorflow as tf

from tpu_trainer.config import DataConfig, FitConfig, ModelConfig, OptimizerConfig, TrainConfig
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.exports.initial_weights import load_weights, resolve_init_from
from tpu_trainer.network.families.registry import FAMILIES
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.objectives import Randomness
from tpu_trainer.training.build import build_task

SIZE, ROWS, LENGTH, RATE = 8192, 4, 256, 1e-4
VOCABULARY = Vocabulary(size=SIZE, special_ids=(0, 1, 2, 3), pad_id=0, mask_id=3, bos_id=1, eos_id=2)
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    },
    "roberta": {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
    }
    | _NO_DROPOUT,
    "gpt2": {
        "n_embd": 256,
        "n_layer": 12,
        "n_head": 4,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
}
Step = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    torch.set_num_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print("| model | trainer, s | PyTorch eager, s | ratio | torch.compile, s | ratio | first losses |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for model_type in args.models:
        times, losses = measure(steps_of(model_type), args.rounds)
        trainer, eager, compiled = map(statistics.median, times)
        ratios = [
            min(ours / theirs for ours, theirs in zip(times[0], others, strict=True)) for others in times[1:]
        ]
        print(
            f"| {model_type} | {trainer:.2f} | {eager:.2f} | {trainer / eager:.2f} (≥ {ratios[0]:.2f}) "
            f"| {compiled:.2f} | {trainer / compiled:.2f} (≥ {ratios[1]:.2f}) "
            f"| {', '.join(f'{loss:.4f}' for loss in losses)} |",
            flush=True,
        )


def measure(steps: list[Step], rounds: int) -> tuple[list[list[float]], list[float]]:
    """Returns the CPU seconds of each step in each round, and the losses of the first steps, which compile."""
    losses = [step() for step in steps]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, seconds in zip(steps, times, strict=True):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
    return times, losses


def steps_of(model_type: str) -> list[Step]:
    """Returns the training steps of the trainer, of PyTorch, and of PyTorch compiled, all from the same weights."""
    config = transformers.CONFIG_MAPPING[model_type]
    positions = config.attribute_map.get("max_position_embeddings", "max_position_embeddings")
    kind = getattr(transformers, FAMILIES[model_type].class_name)
    special = {"vocab_size": SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    # RoBERTa's positions begin after the padding id.
    settings = config(**MODELS[model_type], **special, **{positions: LENGTH + 2})
    torch.manual_seed(0)
    models = [kind._from_config(settings, attn_implementation="sdpa").train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    ids = np.random.default_rng(0).integers(4, SIZE, (ROWS, LENGTH)).astype(np.int32)
    batch = {"input_ids": tf.constant(ids), "row": tf.range(ROWS)}
    with tempfile.TemporaryDirectory() as folder:
        models[0].save_pretrained(folder)
        step, inputs, labels = trainer_step(model_type, folder, batch)
    return [
        step,
        torch_step(models[0], models[0], inputs, labels),
        torch_step(models[1], torch.compile(models[1]), inputs, labels),
    ]


def trainer_step(model_type: str, folder: str, batch: dict[str, tf.Tensor]) -> tuple[Step, Any, Any]:
    """Returns the trainer's step from the weights in `folder`, and the inputs and labels that PyTorch takes."""
    family = FAMILIES[model_type]
    config = FitConfig(
        output_dir="run",
        data=DataConfig(train="train"),
        objective=family.objective,
        model=resolve_init_from(ModelConfig(init_from=folder)),
        optimizer=OptimizerConfig(learning_rate=RATE),
        train=TrainConfig(steps=10**6, batch_size=ROWS),
    )
    task = build_task(config, vocabulary=VOCABULARY, max_length=LENGTH)
    load_weights(task.objective.model.network, folder, family=family, vocabulary=VOCABULARY)
    compiled = tf.function(
        lambda: task.step(batch, all_reduce=lambda sums: sums), jit_compile=True, autograph=False
    )

    def step() -> float:
        task.running.assign(tf.zeros_like(task.running))
        return float(compiled()["loss"])

    inputs = labels = batch["input_ids"].numpy()
    if family.objective == "mlm":
        masking = Masking(vocabulary=VOCABULARY, max_length=LENGTH, probability=config.mlm.probability)
        key = Randomness(config.seed, tf.constant(0), training=True).masks
        masked = masking(**batch, attention_mask=None, key=key)
        inputs, labels = masked.input_ids.numpy(), np.full_like(labels, -100)
        np.put_along_axis(labels, masked.positions.numpy(), masked.targets.numpy(), axis=1)
    return step, torch.tensor(inputs).long(), torch.tensor(labels).long()


def torch_step(model: Any, function: Any, inputs: Any, labels: Any) -> Step:
    """Returns a step of PyTorch; `function` is `model`, or what it was compiled to."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=RATE, eps=1e-6, weight_decay=0.01, fused=True)

    def step() -> float:
        optimizer.zero_grad()
        loss = function(input_ids=inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    main()
