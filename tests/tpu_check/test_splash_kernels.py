"""Compiles a small step with JAX's splash attention for a mesh of TPU devices."""

from __future__ import annotations

import json
from pathlib import Path

from tpu_trainer.config import CompileCheckConfig, MeshConfig, ModelConfig, TrainConfig
from tpu_trainer.verbs import compile_check

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "sliding_window": 512,
}


def test_kernels_of_layers_with_different_windows_process_a_devices_part(tmp_path: Path) -> None:
    config = CompileCheckConfig(
        objective="clm",
        strategy="pjrt",
        model=ModelConfig(type="gemma2", config=MODEL),
        train=TrainConfig(batch_size=8, precision="mixed_bfloat16", attention_kernel=True),
        mesh=MeshConfig(model=2),
        topology="v5e:2x4",
        vocab_size=512,
        max_length=2048,
        cache=str(tmp_path / "cache"),
        output=str(tmp_path / "report.json"),
        hlo=str(tmp_path / "hlo"),
    )
    compile_check.main(config)
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    lines = Path(report["hlo"]).read_text().splitlines()
    results = [
        line.partition(" custom-call(")[0] for line in lines if 'custom_call_target="tpu_custom_call"' in line
    ]
    # A forward and two backward kernels of each window, for 8 rows by 4 groups, 4 of 8 heads and 2 of 4 key heads.
    assert len(results) == 6
    assert all("bf16[2,4,2048,128]" in each or "bf16[2,2,2048,128]" in each for each in results)
    # Four layers at least with windows: of each row's 16 blocks of scores, 7 are not masked. Nine products need them.
    assert report["flops"] > 4 * 2 * 4 * 7 * 512**2 * 2 * 128 * 9
