"""Compares a training step of Llama 3.2 1B on a GPU with Hugging Face's: eager and compiled by torch.compile.

    PYTHONPATH=trainer:reader trainer/.venv/bin/python benchmarks/gpu_step.py lower STEP
    python benchmarks/gpu_step.py run STEP trainer eager compiled

`lower` writes the program that `fit --strategy pjrt --train.attention_kernel` runs on one GPU into the folder STEP; it
needs no GPU. `run` needs JAX and PyTorch for CUDA and transformers, but not TensorFlow: the folder can be carried to a
machine with these. All train in bfloat16 with float32 weights and AdamW, from the same weights on the same batches,
each in its own process. Prints milliseconds per step (the median), the memory at its peak, and the losses.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODEL = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
SIZE, ROWS, LENGTH = 128256, 8, 2048
RATE, DECAY, CLIP, BETAS, EPSILON = 3e-4, 0.1, 1.0, (0.9, 0.95), 1e-8
PARTIES = ("trainer", "eager", "compiled")
# The trainer's names of weights in a layer → Hugging Face's.
NAMES = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["lower", "run"])
    parser.add_argument("folder", type=Path, help="of the lowered step")
    parser.add_argument(
        "parties", nargs="*", default=[*PARTIES], help="to run: trainer, eager, compiled; all by default"
    )
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.what == "lower":
        lower(args.folder)
    elif len(args.parties) == 1:
        run(args.folder, args.parties[0], args.steps)
    else:
        for party in args.parties:
            command = [sys.executable, __file__, "run", str(args.folder), party, "--steps", str(args.steps)]
            subprocess.run(command, check=True)


def lower(folder: Path) -> None:
    """Writes the trainer's step, and what its arguments and results are."""
    from tpu_trainer.config import (
        DataConfig,
        FitConfig,
        ModelConfig,
        OptimizerConfig,
        ScheduleConfig,
        TrainConfig,
    )
    from tpu_trainer.devices.devices import Target
    from tpu_trainer.devices.pjrt.executor import train_step
    from tpu_trainer.devices.pjrt.mesh import _exported, import_jax
    from tpu_trainer.devices.pjrt.stablehlo import Program
    from tpu_trainer.devices.pjrt.variable_names import VariableNames
    from tpu_trainer.network.initial_values import InitialValues
    from tpu_trainer.tpu_check.step import rows_without_dataset
    from tpu_trainer.training.build import build_task

    import_jax()
    config = FitConfig(
        output_dir="run",
        data=DataConfig(train="train"),
        objective="clm",
        model=ModelConfig(type="llama", config=MODEL),
        optimizer=OptimizerConfig(
            learning_rate=RATE, weight_decay=DECAY, clip_norm=CLIP, beta2=BETAS[1], epsilon=EPSILON
        ),
        schedule=ScheduleConfig(name="constant"),
        train=TrainConfig(
            steps=10**6,
            batch_size=ROWS,
            precision="mixed_bfloat16",
            attention_kernel=True,
            recompute="nothing",
        ),
    ).resolved()
    rows = rows_without_dataset(config, vocab_size=SIZE, max_length=LENGTH)
    task = build_task(
        config,
        vocabulary=rows.vocabulary,
        max_length=LENGTH,
        target=Target(cudnn=True),
        initial=InitialValues(postpone=True),
    )
    names = VariableNames(task.state())
    specs = rows.specs(ROWS)
    program = Program(train_step(task), specs)
    lowered = program.lower()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step.bin").write_bytes(_exported(lowered, platform="cuda").serialize())
    signature = {
        "batch": list(specs),
        "variables": [names.name(variable) for variable in program.captured],
        "aliases": sorted(lowered.aliases.items()),
    }
    (folder / "step.json").write_text(json.dumps(signature))


def run(folder: Path, party: str, steps: int) -> None:
    """Trains, and prints the figures."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import torch
    import transformers

    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    config = transformers.LlamaConfig(**MODEL, vocab_size=SIZE, attn_implementation="sdpa", use_cache=False)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).float().train()
    step, memory = (
        trainer_step(folder, model) if party == "trainer" else torch_step(model, party == "compiled")
    )
    losses, seconds = [], []
    for ids in batches(steps):
        began = time.perf_counter()
        losses.append(step(ids))
        seconds.append(time.perf_counter() - began)
    typical = statistics.median(seconds[3:])
    print(
        f"{party}: {1000 * typical:.1f} ms per step, {ROWS * LENGTH / typical:,.0f} tokens/s, {memory() / 1e9:.1f} GB; "
        f"losses {' '.join(f'{loss:.4f}' for loss in losses)}",
        flush=True,
    )


def batches(steps: int) -> list[np.ndarray]:
    """Returns int32 ids of rows that continue predictably at 7 of 10 places, so that the loss falls."""
    rng = np.random.default_rng(0)
    ids_of_states = rng.integers(5, SIZE, 4096)
    result = []
    for _ in range(steps):
        state, ids = rng.integers(0, 4096, ROWS), np.empty((ROWS, LENGTH), np.int32)
        for place in range(LENGTH):
            following = (state * 5 + 1) % 4096
            state = np.where(rng.random(ROWS) < 0.7, following, rng.integers(0, 4096, ROWS))
            ids[:, place] = ids_of_states[state]
        result.append(ids)
    return result


def torch_step(model: Any, compiled: bool) -> tuple[Callable[[np.ndarray], float], Callable[[], int]]:
    """Returns PyTorch's step, and the bytes of memory at its peak."""
    import torch

    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON, fused=True)

    def loss_of(ids: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(
            logits[:, :-1].float().reshape(-1, SIZE), ids[:, 1:].reshape(-1)
        )

    function = torch.compile(loss_of) if compiled else loss_of

    def step(ids: np.ndarray) -> float:
        loss = function(torch.tensor(ids).long().cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step, torch.cuda.max_memory_allocated


def trainer_step(folder: Path, model: Any) -> tuple[Callable[[np.ndarray], float], Callable[[], int]]:
    """Returns the trainer's step from PyTorch's weights, which are freed, and the bytes of memory at its peak."""
    import jax
    import torch

    jax.config.update("jax_enable_x64", True)
    signature = json.loads((folder / "step.json").read_text())
    named_batch, variables, aliases = signature["batch"], signature["variables"], dict(signature["aliases"])
    exported = jax.export.deserialize(bytearray((folder / "step.bin").read_bytes()))
    compiled = jax.jit(exported.call, donate_argnums=tuple(aliases)).lower(*exported.in_avals).compile()
    values = {}
    for name, kind in zip(variables, exported.in_avals[len(named_batch) :], strict=True):
        value = np.zeros(kind.shape, kind.dtype)
        if name.startswith("network/"):
            weight = weight_of(model, name.removeprefix("network/"))
            value[: len(weight)] = weight
        values[name] = jax.device_put(value)
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    torch.cuda.empty_cache()
    means: list[float] = []

    def step(ids: np.ndarray) -> float:
        features = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "row": np.arange(ROWS, dtype=np.int32) + ROWS * len(means),
        }
        results = compiled(
            *(jax.device_put(features[name]) for name in named_batch), *(values[name] for name in variables)
        )
        for argument, number in aliases.items():
            values[variables[argument - len(named_batch)]] = results[number]
        (loss,) = (value for number, value in enumerate(results) if number not in aliases.values())
        means.append(float(loss))  # of all steps until now
        return means[-1] * len(means) - (means[-2] * (len(means) - 1) if len(means) > 1 else 0.0)

    return step, lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def weight_of(model: Any, name: str) -> np.ndarray:
    """Returns the initial value of the trainer's weight of that name."""
    parameters = dict(model.named_parameters())

    def array(name: str) -> np.ndarray:
        return parameters[name].detach().cpu().numpy()

    if name == "embeddings.tokens.weight":
        return array("model.embed_tokens.weight")
    if name == "final_norm.weight":
        return array("model.norm.weight")
    part = NAMES[name.removeprefix("layers.").removesuffix(".weight")]
    return np.stack(
        [array(f"model.layers.{layer}.{part}.weight") for layer in range(MODEL["num_hidden_layers"])]
    )


if __name__ == "__main__":
    main()
