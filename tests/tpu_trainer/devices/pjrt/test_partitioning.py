"""Operations that a mesh divides differently from XLA's partitioner."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.small_runs import fit_arguments, metrics
from tests.tpu_trainer.tiny import write_split

OPTIONS = {
    "model.type": "gpt2",
    "model.config.n_embd": 256,
    "model.config.n_layer": 1,
    "model.config.n_head": 4,
    "objective": "clm",
    "strategy": "pjrt",
    "mesh.model": 2,
    "train.steps": 3,
    "train.batch_size": 8,
    "train.log_every": 1,
}


def fit(
    folder: Path, run: str, kind: str = "right", *, data: str = "data", **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs divided_kernels.py on eight devices."""
    if "model.type" in options:  # the configuration of another model
        shared = {name: value for name, value in OPTIONS.items() if not name.startswith("model.")}
    else:
        shared = OPTIONS
    arguments = fit_arguments(folder / data, folder / run, shared | options)
    return cpu_devices.run_module("divided_kernels", kind, *arguments, XDG_CACHE_HOME=str(folder / "cache"))


@pytest.fixture
def folder(tmp_path: Path, tokenizer_folder: Path) -> Path:
    """A folder with a dataset, rows of 128 tokens, and one of rows of 512."""
    for name, length in (("data", 128), ("long", 512)):
        rows = np.random.default_rng(0).integers(5, 50, size=(48, length))
        for split in ("train", "validation"):
            write_split(tmp_path / name / split, rows, tokenizer=tokenizer_folder)
    return tmp_path


# In JAX's splash attention: grouped heads, a window in some of the layers, and a soft cap.
SPLASH = {
    "model.type": "gemma2",
    "model.config.hidden_size": 32,
    "model.config.intermediate_size": 24,
    "model.config.num_hidden_layers": 2,
    "model.config.num_attention_heads": 4,
    "model.config.num_key_value_heads": 2,
    "model.config.head_dim": 64,
    "model.config.sliding_window": 50,
    "model.config.layer_types": '["sliding_attention", "full_attention"]',
}


# In cuDNN: grouped heads, and a window in some of the layers.
CUDNN = {name: value for name, value in SPLASH.items() if name != "model.type"} | {
    "model.type": "gemma3_text",
    "model.config.head_dim": 8,
    "train.precision": "mixed_bfloat16",
}


# Devices divide rows, too. Each has two chunks of 128 tokens.
SEQUENCE = SPLASH | {"mesh.sequence": 2, "data": "long"}


@pytest.mark.parametrize(
    ("model", "kind", "tolerance"),
    [({}, "right", 1e-5), (SPLASH, "right", 1e-5), (SEQUENCE, "right", 1e-5), (CUDNN, "cudnn", 2e-4)],
    ids=["gpt2", "gemma2", "sequence", "gemma3"],
)
def test_a_mesh_checks_its_kernels_and_trains_as_without_them(
    model: dict[str, Any], kind: str, tolerance: float, folder: Path
) -> None:
    pytest.importorskip("jax")
    losses = {}
    for kernel in ("false", "true"):
        result = fit(folder, kernel, kind, **{"train.attention_kernel": kernel}, **model)
        assert result.returncode == 0, result.stderr
        is_reported = "the attention kernel matches plain attention on this device" in result.stderr
        assert is_reported == (kernel == "true")
        losses[kernel] = [record["loss"] for record in metrics(folder / kernel) if "loss" in record]
    assert len(losses["true"]) == 3
    np.testing.assert_allclose(losses["true"], losses["false"], rtol=tolerance)


def test_a_mesh_whose_kernels_are_wrong_ends_the_run(folder: Path) -> None:
    pytest.importorskip("jax")
    result = fit(folder, "run", "wrong", **{"train.attention_kernel": "true"})
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert "on this device, the kernel's output differs from plain attention's by" in result.stderr
