"""The search for a mesh with the real TPU compiler."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpu_trainer.config import CompileCheckConfig, MeshConfig, ModelConfig, TrainConfig
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.cache import open_cache
from tpu_trainer.tpu_check.check import StepCheck
from tpu_trainer.tpu_check.mesh_candidates import fsdp_values
from tpu_trainer.verbs import compile_check

CONFIG = CompileCheckConfig(
    objective="clm",
    strategy="pjrt",
    model=ModelConfig(type="gpt2", config={"n_embd": 128, "n_layer": 1, "n_head": 2}),
    train=TrainConfig(batch_size=4),
    topology="v5e:1x2",
    vocab_size=512,
    max_length=64,
    find_mesh=True,
)


def search_report(config: CompileCheckConfig, folder: Path) -> dict[str, Any]:
    """Returns the search's part of the file that it writes."""
    output = folder / "report.json"
    compile_check.main(replace(config, cache=str(folder / "cache"), output=str(output)))
    (report,) = json.loads(output.read_text())["reports"]
    return report


def test_the_search_finds_what_compiling_everything_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    report = search_report(CONFIG, tmp_path)
    assert "strategy: pjrt" in capsys.readouterr().out
    cache = open_cache(str(tmp_path / "cache"))
    speeds = {}
    for (data, model), fsdp, accumulation in itertools.product([(2, 1), (1, 2)], fsdp_values(), [1, 2, 4]):
        if (data == 1 and fsdp) or 4 % (data * accumulation):
            continue
        config = replace(
            CONFIG,
            mesh=MeshConfig(data=data, model=model, fsdp=fsdp),
            train=replace(CONFIG.train, accumulation=accumulation),
            cache=str(tmp_path / "cache"),
        )
        check = StepCheck(config, topology=Topology.parse(CONFIG.topology), cache=cache)
        each = check.report(check.configured_rows())
        speeds[data, model, fsdp, accumulation] = each["roofline"]["tokens_per_second"]
    assert len(speeds) == 2 * len(fsdp_values()) + 3
    best = report["search"]["best"]
    names = ("data", "model", "fsdp")
    best_candidate = (*(best["mesh"][name] for name in names), best["train"]["accumulation"])
    assert speeds[best_candidate] == max(speeds.values()) == report["roofline"]["tokens_per_second"]
    # No bound excludes what is possible.
    for trial in report["search"]["tried"]:
        key = (*(trial["mesh"][name] for name in names), trial["train"]["accumulation"])
        assert speeds[key] <= trial["bound_tokens_per_second"]
    # The same search again needs no compiler.
    assert search_report(CONFIG, tmp_path) == report
    assert "0 compiled" in caplog.text.splitlines()[-1]
