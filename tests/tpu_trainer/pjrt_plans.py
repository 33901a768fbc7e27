"""Trains tiny models by plans of --strategy pjrt and with TensorFlow, for devices/pjrt/test_executor.py.

A process of its own: the number of CPU devices is fixed when a process starts. Arguments: a dataset folder, an empty
folder, and `some` or `all`: every plan makes ALL_STEPS steps of every case, which takes minutes. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tpu_trainer.step_digests import CONFIGS, step_digest
from tests.tpu_trainer.tiny import MAX_LENGTH
from tests.tpu_trainer.trained import joined
from tpu_trainer.config import (
    DataConfig,
    FitConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
)
from tpu_trainer.config.optimization import OptimizerName
from tpu_trainer.data.batches import EvaluationRows, RowStream
from tpu_trainer.data.dataset import open_split
from tpu_trainer.data.mixture import open_mixture
from tpu_trainer.data.vocabulary import load_vocabulary
from tpu_trainer.devices.devices import Target
from tpu_trainer.devices.executor import StepExecutor
from tpu_trainer.devices.pjrt.executor import PjrtExecutor
from tpu_trainer.devices.pjrt.lowering import Lowering
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.devices.tensorflow.executor import TensorFlowExecutor
from tpu_trainer.network import cross_entropy
from tpu_trainer.network.division import Division
from tpu_trainer.step.task import Task
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.hlo import HloModule
from tpu_trainer.training.build import build_task

STEPS, ALL_STEPS, BATCH = 6, 50, 16
PLANS = {
    "one device": MeshConfig(data=1),
    "data 4": MeshConfig(data=4),
    "zero": MeshConfig(data=8, fsdp="zero"),
    "fsdp": MeshConfig(data=8, fsdp=True),
    "keep": MeshConfig(data=8, fsdp="keep"),
    "tensor": MeshConfig(data=2, model=4),
    "tensor, fsdp": MeshConfig(data=2, model=4, fsdp=True),
    "sequence": MeshConfig(data=2, sequence=4),
    "sequence, tensor, fsdp": MeshConfig(data=2, sequence=2, model=2, fsdp=True),
    "expert": MeshConfig(data=2, expert=4),
    "expert, sequence, fsdp": MeshConfig(data=1, expert=2, sequence=2, model=2, fsdp=True),
    "own rules": MeshConfig(
        data=2,
        model=4,
        rules={"tokens.weight": [None, "model"], "mlp.up.weight": [None, None, None]},
    ),
}
_MLM = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
_CLM = {"n_embd": 32, "n_layer": 2, "n_head": 4}
_LLAMA = {
    "hidden_size": 32,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
}
# With a small epsilon, Adam makes full steps of gradients that are zero but for rounding.
_OPTIMIZER = OptimizerConfig(learning_rate=3e-3, epsilon=3e-3, ema=0.9)
_TRAIN = TrainConfig(steps=STEPS, batch_size=BATCH)


def _llama(optimizer: OptimizerName, model: str, learning_rate: float = 3e-3, **config: int) -> FitConfig:
    """A model without biases: those of keys have no effect, and Lion would make full steps by their rounding errors."""
    return FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective="clm",
        model=ModelConfig(type=model, config=_LLAMA | config),
        optimizer=replace(_OPTIMIZER, learning_rate=learning_rate)
        if optimizer == "adamw"
        else OptimizerConfig(name=optimizer, learning_rate=learning_rate, ema=0.9),
        train=_TRAIN,
    )


CASES: dict[str, FitConfig] = {
    "mlm": FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        model=ModelConfig(type="roberta", config=_MLM | {"hidden_dropout_prob": 0.1}),
        optimizer=_OPTIMIZER,
        train=replace(_TRAIN, accumulation=2, skip_spikes=6.0),
    ),
    # The dataset's documents are kept apart.
    "clm": FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective="clm",
        model=ModelConfig(type="gpt2", config=_CLM | {"resid_pdrop": 0.1}),
        optimizer=_OPTIMIZER,
        train=replace(_TRAIN, recompute="all"),
    ),
    "bfloat16": FitConfig(
        output_dir="",
        data=DataConfig(train=""),
        objective="clm",
        model=ModelConfig(type="gpt2", config=_CLM | {"n_layer": 1}),
        optimizer=_OPTIMIZER,
        train=replace(_TRAIN, precision="mixed_bfloat16"),
    ),
    "muon": _llama("muon", "llama"),
    "adafactor": _llama("adafactor", "llama", learning_rate=1e-2),
    "lion": _llama("lion", "llama", learning_rate=1e-4),
    "experts": _llama("adamw", "qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}


# Each plan takes ten seconds of a core: `some` of all pairs.
TESTED = {
    "mlm": ("zero", "keep", "sequence"),
    "clm": ("tensor, fsdp",),
    "bfloat16": ("own rules",),
    "muon": ("tensor, fsdp", "sequence, tensor, fsdp"),
    "adafactor": ("tensor, fsdp",),
    "lion": ("tensor, fsdp", "sequence"),
    "experts": ("tensor, fsdp", "expert", "expert, sequence, fsdp"),
}


def plans_of(name: str, extent: str) -> dict[str, MeshConfig]:
    """Returns the plans by which a case is trained."""
    return {
        plan: mesh
        for plan, mesh in PLANS.items()
        if plan in TESTED[name] or (extent == "all" and (mesh.expert == 1 or name == "experts"))
    }


def results(executor: StepExecutor, rows: RowStream, validation: Any, *, steps: int) -> dict[str, Any]:
    """Returns the loss and the sources' sums of each step, sums of a batch with the weights' average, and the state."""
    batches = iter(executor.distribute(rows.batches(0)))
    losses, sources = [], []
    for step in range(steps):
        executor.train(batches, range(step, step + 1))
        sums = executor.sums()
        losses.append(sums.loss / sums.targets)
        sources.append([[value / BATCH for value in source] for source in sums.sources])
        executor.clear_sums()
    with executor.evaluated_weights():
        average = executor.evaluate(next(iter(executor.distribute(validation))))
    assert executor.non_finite() is None
    state = joined(executor.state())
    return {"losses": losses, "sources": sources, "average": average, "state": state}


def collective_counts(executor: PjrtExecutor) -> dict[str, int]:
    """Returns kind → count in the training program."""
    text = next(iter(executor._programs.values())).run.as_text()
    return {each.kind: each.count for each in collectives(HloModule.parse(text))}


def largest_differences(actual: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Returns the largest differences: of losses, and of variables relative to their largest element."""
    state = {
        name: float(np.abs(actual["state"][name] - value).max() / max(np.abs(value).max(), 1e-3))
        for name, value in expected["state"].items()
    }
    assert actual["state"].keys() == state.keys()
    worst_name = max(state, key=state.get)

    def difference(name: str) -> float:
        return float(np.abs(np.array(actual[name]) - np.array(expected[name])).max())

    return {
        "losses": difference("losses"),
        "sources": difference("sources"),
        "average": difference("average") / expected["average"].targets,
        "state": state[worst_name],
        "worst": worst_name,
    }


def main(dataset: str, scratch: str, extent: str) -> None:
    train = open_mixture({f"{dataset}/train": 3, f"{dataset}/validation": 1})
    split = open_split(f"{dataset}/validation")
    vocabulary = load_vocabulary(train.datasets[0], "mlm")
    cache = LoweringCache(Path(scratch))
    steps = ALL_STEPS if extent == "all" else STEPS
    report: dict[str, Any] = {}
    for name, case in CASES.items():
        config = replace(case, train=replace(case.train, steps=steps))
        rows = RowStream(data=train, batch_size=BATCH, seed=3, window_shards=2)
        validation = EvaluationRows(split, batch_size=BATCH, vocabulary=vocabulary).batches()

        def task(division: Division, config: FitConfig = config) -> Task:
            return build_task(
                config,
                vocabulary=vocabulary,
                max_length=train.max_length,
                target=Target(division=division),
                first_rows=train.first_rows.tolist(),
            )

        reference = task(Division())
        reference.average.start()
        trained = TensorFlowExecutor(reference, tf.distribute.get_strategy())
        expected = results(trained, rows, validation, steps=steps)
        weights = trained.evaluate(next(iter(trained.distribute(validation))))
        assert abs(weights.loss - expected["average"].loss) > 1e-4  # the average differs from the weights
        report[name] = {"first": expected["losses"][0], "final": expected["losses"][-1], "plans": {}}
        tasks: dict[Division, Task] = {}
        for plan, mesh in plans_of(name, extent).items():
            division = Division(**mesh.sizes)
            if division not in tasks:
                tasks[division] = task(division)
                tasks[division].average.start()
            devices = DeviceMesh(mesh)
            executor = PjrtExecutor(tasks[division], devices, lowering=Lowering(cache, devices))
            # Two chunks of the loss.
            cross_entropy.cross_entropy_sums.__kwdefaults__["max_logits"] = (
                BATCH * MAX_LENGTH * 64 // division.groups
            )
            plan_results = results(executor, rows, validation, steps=steps)
            report[name]["plans"][plan] = largest_differences(plan_results, expected) | {
                "collectives": collective_counts(executor)
            }
            print(f"{name}, {plan}: {time.process_time():.1f} s of CPU time", file=sys.stderr, flush=True)
    report["digests"] = {name: step_digest(config, vocabulary) for name, config in CONFIGS.items()}
    report["cache"] = [cache.hits, cache.misses]
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
