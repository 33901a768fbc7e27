"""Compiles the step of a small GPT-2 for meshes of 8 CPU devices, for training/test_collectives.py.

A process of its own: the number of CPU devices is fixed when a process starts. The argument is an empty folder. Prints
a JSON object: plan → collectives, and bytes of the weights.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpu_trainer.config import CompileCheckConfig, MeshConfig, ModelConfig, TrainConfig
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.devices.pjrt.mesh import DeviceMesh
from tpu_trainer.network import cross_entropy
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.collectives import collectives
from tpu_trainer.tpu_check.hlo import HloModule
from tpu_trainer.tpu_check.mesh_step import MeshStep
from tpu_trainer.tpu_check.step import rows_without_dataset

HIDDEN, LAYERS, VOCABULARY, LENGTH, GROUP_ROWS = 64, 2, 512, 32, 4
PLANS = {
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=8, fsdp=True),
    "fsdp, micro-batches": MeshConfig(data=8, fsdp=True),
    "keep": MeshConfig(data=8, fsdp="keep"),
    "tensor": MeshConfig(data=2, model=4),
    "sequence": MeshConfig(data=2, sequence=4),
    "expert": MeshConfig(data=2, expert=4),
}
CONFIG = CompileCheckConfig(
    objective="clm",
    strategy="pjrt",
    model=ModelConfig(type="gpt2", config={"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4}),
    train=TrainConfig(recompute="all"),
)
EXPERTS, CHOSEN = 8, 2
MIXTURE = ModelConfig(
    type="qwen3_moe",
    config={
        "hidden_size": HIDDEN,
        "moe_intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "num_experts": EXPERTS,
        "num_experts_per_tok": CHOSEN,
    },
)


def main(scratch: str) -> None:
    rows = rows_without_dataset(CONFIG, vocab_size=VOCABULARY, max_length=LENGTH)
    # Two chunks of the loss.
    cross_entropy.cross_entropy_sums.__kwdefaults__["max_logits"] = GROUP_ROWS * LENGTH * VOCABULARY // 2
    report: dict[str, Any] = {}
    for plan, mesh in PLANS.items():
        train = replace(CONFIG.train, accumulation=2 if "micro-batches" in plan else 1)
        step = MeshStep(
            config=replace(
                CONFIG, mesh=mesh, train=train, model=MIXTURE if mesh.expert > 1 else CONFIG.model
            ),
            rows=rows,
            topology=Topology.parse("v5e:2x4"),
            cache=LoweringCache(Path(scratch)),
        )
        module = step.program(GROUP_ROWS).lower()
        text = DeviceMesh(module.mesh).compile(module.lowered, module.placements).as_text()
        if mesh.expert == 1:
            sizes = [variable.shape.num_elements() for variable in step.task.weights.values()]
        report[plan] = {each.kind: dataclasses.asdict(each) for each in collectives(HloModule.parse(text))}
    report["weights"] = 4 * sum(sizes)
    report["variables"] = len(sizes)
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
