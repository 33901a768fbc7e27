"""The optimizer's updates, compared with those of torch.optim.AdamW."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
_STEPS = 50


@pytest.mark.parametrize("epsilon", [1e-8, 1e-6, 1e-3])
def test_weights_after_50_steps_are_those_of_pytorch(epsilon: float, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"matrix": (16, 8), "vector": (8,)}
    # Gradients as small as those of rare tokens, about the size of epsilon, and some that are clipped.
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {
        f"{name}_gradients": (
            rng.normal(size=(_STEPS, *shape)) * 10.0 ** rng.uniform(-8, 0.5, size=shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    numbers = {"epsilon": epsilon, "learning_rate": 1e-2, "weight_decay": 0.1, "clip_norm": 1.0}
    np.savez(tmp_path / "given.npz", **arrays, **numbers)
    python = os.environ.get("TRAINER_PYTHON", str(ROOT / "trainer" / ".venv" / "bin" / "python"))
    subprocess.run(
        [python, str(Path(__file__).with_name("write_updates.py")), str(tmp_path)],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "trainer"), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    parameters = {name: torch.nn.Parameter(torch.from_numpy(arrays[name].copy())) for name in shapes}
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameters["matrix"]], "weight_decay": numbers["weight_decay"]},
            {"params": [parameters["vector"]], "weight_decay": 0.0},
        ],
        lr=numbers["learning_rate"],
        eps=epsilon,
    )
    with np.load(tmp_path / "updated.npz") as updated_weights:
        for step in range(_STEPS):
            for name, parameter in parameters.items():
                parameter.grad = torch.from_numpy(arrays[f"{name}_gradients"][step].copy())
            # It divides by norm + 1e-6, and TensorFlow by the norm.
            torch.nn.utils.clip_grad_norm_(parameters.values(), numbers["clip_norm"])
            optimizer.step()
            for name, parameter in parameters.items():
                np.testing.assert_allclose(
                    updated_weights[name][step],
                    parameter.detach().numpy(),
                    rtol=2e-6,
                    atol=2e-6,
                    err_msg=f"{step}",
                )
