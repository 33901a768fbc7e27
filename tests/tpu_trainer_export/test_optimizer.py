"""The optimizers' updates, compared with those of torch.optim, in which each layer has parameters of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
_STEPS, _RATE, _DECAY, _LAYERS = 50, 1e-2, 0.1, 2
_SHAPES = {
    "embeddings.tokens.weight": (16, 8),
    "layers.mlp.up.weight": (_LAYERS, 24, 8),
    "layers.mlp.down.weight": (_LAYERS, 8, 24),
    "layers.mlp.down.bias": (_LAYERS, 8),
}
Arrays = dict[str, np.ndarray]
Groups = dict[str, list[torch.nn.Parameter]]


def adamw(groups: Groups, epsilon: float) -> list[torch.optim.Optimizer]:
    decayed = groups["matrices"] + groups["embeddings"]
    return [
        torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": _DECAY},
                {"params": groups["vectors"], "weight_decay": 0.0},
            ],
            lr=_RATE,
            eps=epsilon,
        )
    ]


def muon(groups: Groups) -> list[torch.optim.Optimizer]:
    muon = torch.optim.Muon(
        groups["matrices"], lr=2 * _RATE, weight_decay=_DECAY, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, *adamw(groups | {"matrices": []}, 1e-6)]


def adafactor(groups: Groups) -> list[torch.optim.Optimizer]:
    return [
        torch.optim.Adafactor(groups[name], lr=_RATE, eps=(1e-15, 1e-3), weight_decay=decay)
        for name, decay in {"matrices": _DECAY, "embeddings": _DECAY, "vectors": 0.0}.items()
    ]


# The options, PyTorch's optimizers, and the largest difference. PyTorch's Muon computes in bfloat16.
_CASES: dict[str, tuple[dict[str, Any], Callable[[Groups], list[torch.optim.Optimizer]], float]] = {
    "adamw, epsilon 1e-8": ({"epsilon": 1e-8}, lambda groups: adamw(groups, 1e-8), 2e-6),
    "adamw, epsilon 1e-3": ({"epsilon": 1e-3}, lambda groups: adamw(groups, 1e-3), 2e-6),
    "muon": ({"name": "muon", "muon_momentum": 0.9, "muon_learning_rate": 2 * _RATE}, muon, 6e-3),
    "adafactor": ({"name": "adafactor"}, adafactor, 5e-6),
}


@pytest.fixture
def arrays() -> Arrays:
    """Weights, and gradients as small as those of rare tokens, about the size of epsilon, and some to be clipped."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in _SHAPES.items()}
    return weights | {
        f"{name}_gradients": (
            rng.normal(size=(_STEPS, *shape)) * 10.0 ** rng.uniform(-8, 0.5, size=shape)
        ).astype(np.float32)
        for name, shape in _SHAPES.items()
    }


@pytest.mark.parametrize("case", _CASES)
def test_weights_after_each_of_50_steps_are_those_of_pytorch(
    case: str, arrays: Arrays, tmp_path: Path
) -> None:
    options, build, tolerance = _CASES[case]
    options = {"learning_rate": _RATE, "weight_decay": _DECAY, "clip_norm": 1.0} | options
    updated_weights = _updated_weights(tmp_path, options, arrays)
    parameters = {
        name: [torch.nn.Parameter(torch.from_numpy(part.copy())) for part in _parts(name, arrays[name])]
        for name in _SHAPES
    }
    groups: Groups = {"matrices": [], "embeddings": [], "vectors": []}
    for name, each in parameters.items():
        kind = "vectors" if each[0].ndim == 1 else "matrices" if name.startswith("layers.") else "embeddings"
        groups[kind] += each
    optimizers = build(groups)
    for step in range(_STEPS):
        for name, each in parameters.items():
            gradients = _parts(name, arrays[f"{name}_gradients"][step])
            for parameter, gradient in zip(each, gradients, strict=True):
                parameter.grad = torch.from_numpy(gradient.copy())
        # It divides by norm + 1e-6, and TensorFlow by the norm.
        torch.nn.utils.clip_grad_norm_([each for group in groups.values() for each in group], 1.0)
        for optimizer in optimizers:
            optimizer.step()
        for name, each in parameters.items():
            reference = np.stack([parameter.detach().numpy() for parameter in each])
            actual = _parts(name, updated_weights[name][step])
            np.testing.assert_allclose(
                actual, reference, rtol=tolerance, atol=tolerance, err_msg=f"{name}, {step}"
            )


def _parts(name: str, values: np.ndarray) -> np.ndarray:
    """Returns the values of each layer."""
    return values if name.startswith("layers.") else values[None]


def _updated_weights(folder: Path, options: dict[str, Any], arrays: Arrays) -> Arrays:
    (folder / "options.json").write_text(json.dumps(options))
    np.savez(folder / "given.npz", **arrays)
    python = os.environ.get("TRAINER_PYTHON", str(ROOT / "trainer" / ".venv" / "bin" / "python"))
    subprocess.run(
        [python, str(Path(__file__).with_name("write_updates.py")), str(folder)],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "trainer"), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    with np.load(folder / "updated.npz") as updated:
        return dict(updated)
