"""The step that compile-check compiles is the step that `fit` trains with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tpu_trainer.small_runs import fit_arguments
from tests.tpu_trainer.tiny import sequences, write_split
from tpu_trainer.devices.pjrt.lowering_cache import LoweringCache
from tpu_trainer.support.chips import Topology
from tpu_trainer.tpu_check.check import rows_of
from tpu_trainer.tpu_check.mesh_step import MeshStep
from tpu_trainer.tpu_check.step import ReplicaStep
from tpu_trainer.verbs.command_line import parse


def test_a_source_of_a_later_stage_is_in_both(
    tokenizer_folder: Path, tmp_path: Path, run_verb: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate("abc"):
        write_split(tmp_path / name / "train", sequences(20, seed), tokenizer=tokenizer_folder)
    a, b, c = (str(tmp_path / name / "train") for name in "abc")
    cache = tmp_path / "cache" / "tokenmill" / "pjrt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {
        "config": "tiny-clm",
        "strategy": "pjrt",
        "model.config": '{"n_embd": 16, "n_layer": 1, "n_head": 2}',
        "data.train": json.dumps({a: 3, b: 1}),
        "data.validation": "null",
        "train.batch_size": 4,
        "train.steps": 2,
        "schedule.warmup_steps": 1,
    }

    def checked(**others: object) -> tuple[str, int]:
        """Returns the key of the step that compile-check lowers, and how many running sums one without a mesh has."""
        command = fit_arguments(tmp_path, "unused", options | others)
        config = parse(["compile-check", *map(str, command[1:])])[1]
        rows, topology = rows_of(config), Topology.parse("v5e:1x1")
        step = MeshStep(config=config, rows=rows, topology=topology, cache=LoweringCache(cache))
        replica = ReplicaStep(config=config, rows=rows, topology=topology)
        return LoweringCache.key(step.trace(rows.specs(4))), replica._task_for(4).running.shape[0]

    stages = json.dumps([{"from": 1, "weights": {c: 1, a: 1}}])
    assert run_verb(*fit_arguments(tmp_path, tmp_path / "run", options | {"data.stages": stages})) == 0
    trained = {path.stem for path in cache.iterdir()}
    sums = {}
    for name, others in {"all": {"data.stages": stages}, "two": {}, "one": {"data.train": a}}.items():
        key, sums[name] = checked(**others)
        assert (key in trained) == (name == "all")
    assert sums == {"all": 7 + 3 * 4, "two": 7 + 2 * 4, "one": 7}
