"""Measures the distributions of initial weights in PyTorch's classes, for tests without PyTorch. Run it with

    PYTHONPATH=.:trainer trainer/.venv-export/bin/python -m tests.tpu_trainer_export.initial_weights

It writes tests/tpu_trainer/network/initial_weights.json, which has each weight's mean and standard deviation, by
objective and model type, then by the weight's name with * for layer numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from tests.tpu_trainer.model_types import ALL, LENGTH, VOCABULARY, name_pattern, wide_config

TABLE = Path(__file__).parents[1] / "tpu_trainer" / "network" / "initial_weights.json"
_CLASSES = {"mlm": transformers.AutoModelForMaskedLM, "clm": transformers.AutoModelForCausalLM}


def measure(objective: str, model_type: str) -> dict[str, tuple[float, float]]:
    """Returns mean and standard deviation over all layers, by name pattern."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH}
    config = transformers.CONFIG_MAPPING[model_type](**wide_config(model_type), **sizes)
    weights_by_pattern: dict[str, list[torch.Tensor]] = {}
    for name, value in _CLASSES[objective].from_config(config).named_parameters():
        weights_by_pattern.setdefault(name_pattern(name), []).append(value.detach().flatten())
    return {name: _moments(torch.cat(values)) for name, values in sorted(weights_by_pattern.items())}


def _moments(values: torch.Tensor) -> tuple[float, float]:
    # Without the padding token's embedding, which is 0.
    deviation = values[values != 0].std() if (values != 0).sum() > 1 else torch.tensor(0.0)
    return tuple(float(f"{x:.2g}") for x in (values.mean(), deviation))


if __name__ == "__main__":
    lines = [f"{json.dumps(' '.join(case))}: {json.dumps(measure(*case))}" for case in ALL]
    TABLE.write_text("{" + ",\n".join(lines) + "}\n")
