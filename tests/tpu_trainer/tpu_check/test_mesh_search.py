"""The search for a mesh, with a stand-in for the compiler."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_trainer.config import CompileCheckConfig, MeshConfig, TrainConfig
from tpu_trainer.network.architecture import Architecture, Attention, LayerKind, Mlp, Norm
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError
from tpu_trainer.tpu_check.figures import roofline
from tpu_trainer.tpu_check.mesh_candidates import (
    Candidate,
    MeshPlan,
    ModelFacts,
    fsdp_values,
    least_seconds,
    micro_batches,
    plans,
    start,
)
from tpu_trainer.tpu_check.mesh_search import (
    FITS,
    REFUSED,
    TOO_LARGE,
    MeshSearch,
    RefusedStep,
)

TOPOLOGY = Topology.parse("v5e:2x4")
CONFIG = CompileCheckConfig(objective="clm", strategy="pjrt", train=TrainConfig(batch_size=64))
LAYERS, HIDDEN, VOCABULARY = 12, 768, 50304
ARCHITECTURE = Architecture(
    vocabulary=VOCABULARY,
    width=HIDDEN,
    causal=True,
    attention=Attention(heads=12, key_heads=12, head_size=64, scale=0.125),
    mlp=Mlp(size=4 * HIDDEN, activation="gelu"),
    norm=Norm(kind="layer", epsilon=1e-5),
    kinds=(LayerKind(),) * LAYERS,
)


def facts(**changes: Any) -> ModelFacts:
    """The facts of a model like GPT-2 small."""
    shapes = {}
    for part in ("network", "optimizer/mean", "optimizer/mean_square"):
        shapes[f"{part}/embeddings.tokens.weight"] = (VOCABULARY, HIDDEN)
        shapes[f"{part}/layers.attention.query.weight"] = (LAYERS, 3 * HIDDEN, HIDDEN)
        shapes[f"{part}/layers.mlp.up.weight"] = (LAYERS, 4 * HIDDEN, HIDDEN)
    values = {
        "shapes": shapes,
        "architecture": ARCHITECTURE,
        "max_length": 1024,
        "row_flops": 8e11,
        "activation_bytes": 2,
    }
    return ModelFacts(**values | changes)


FACTS = facts()
PLANS, REFUSED_PLANS = plans(CONFIG, FACTS, TOPOLOGY)


def test_plans_keep_the_axes_of_experts_and_tokens() -> None:
    config = replace(CONFIG, mesh=MeshConfig(sequence=2))
    possible, _ = plans(config, FACTS, TOPOLOGY)
    assert {(plan.data, plan.sequence, plan.model) for plan in possible} == {(4, 2, 1), (2, 2, 2), (1, 2, 4)}
    assert "data 4 × sequence 2 × model 1" in {str(plan) for plan in possible}
    _, refused = plans(replace(CONFIG, mesh=MeshConfig(expert=2)), FACTS, TOPOLOGY)
    assert all("the model has no experts" in reason for reason in refused.values())
    with pytest.raises(UsageError, match=r"--mesh.sequence 3 must divide the 8 devices of v5e:2x4"):
        plans(replace(CONFIG, mesh=MeshConfig(sequence=3)), FACTS, TOPOLOGY)


class Compiler:
    """A stand-in for the compiler."""

    def __init__(self, *, gb_per_row: float = 0.1, overhead: float = 1.0, seed: int = 0) -> None:
        self.gb_per_row = gb_per_row
        self.overhead = overhead
        self.seed = seed
        self.compiled: list[Candidate] = []

    def __call__(self, candidate: Candidate) -> dict[str, Any]:
        self.compiled.append(candidate)
        plan = candidate.plan
        lower_bounds = least_seconds(candidate, PLANS[plan], FACTS, TOPOLOGY)
        # Noise that depends only on the candidate.
        noise = math.sin(crc32(f"{plan.model} {plan.fsdp} {self.seed}".encode())) ** 2
        seconds = {name: value * (1 + self.overhead * noise) for name, value in lower_bounds.items()}
        # Small micro-batches read the weights more often.
        seconds["memory"] += 0.02 * candidate.accumulation
        needed_bytes = PLANS[plan].state + 1e9 * self.gb_per_row * candidate.rows / plan.model
        tokens = candidate.batch_size * 1024
        line = roofline(
            TOPOLOGY,
            flops=seconds["compute"] * 197e12,
            hbm_traffic=seconds["memory"] * 819e9,
            sent=seconds["communication"] * 100e9,
            model_flops=1.0,
            tokens=tokens,
        )
        report = {
            "fits": needed_bytes <= 16 * 2**30,
            "hbm": {"needed": needed_bytes, "available": 16 * 2**30},
            "replica_rows": candidate.rows * candidate.accumulation,
            "replicas": plan.data,
            "max_length": 1024,
        }
        if not report["fits"]:
            return report
        return report | {
            "flops": seconds["compute"] * 197e12,
            "hbm_traffic": seconds["memory"] * 819e9,
            "collectives": [{"sent": seconds["communication"] * 100e9}],
            "roofline": line,
        }


def search(compiler: Any, config: CompileCheckConfig = CONFIG, **changes: Any) -> MeshSearch:
    values = {"config": config, "facts": FACTS, "topology": TOPOLOGY, "plans": PLANS, "compile": compiler}
    return MeshSearch(**values | changes)


def best_of_all(compiler: Compiler, config: CompileCheckConfig = CONFIG) -> float:
    """The most tokens per second of all candidates."""
    reports = [compiler(each) for plan in PLANS for each in micro_batches(plan, config) if each.rows < 4096]
    return max((each["roofline"]["tokens_per_second"] for each in reports if each["fits"]), default=0.0)


def test_plans_have_all_devices_and_follow_the_rules() -> None:
    possible_plans, refused_plans = PLANS, REFUSED_PLANS
    assert all(plan.data * plan.model == 8 for plan in possible_plans)
    assert {plan.model for plan in possible_plans} == {1, 2, 4}
    assert [(plan.model, reason) for plan, reason in refused_plans.items()] == [
        (8, "mesh.model is 8: it must divide the number of the model's attention heads, 12")
    ]
    assert {plan.fsdp for plan in possible_plans if plan.model == 2} == set(fsdp_values())
    plans_of_all, _ = plans(replace(CONFIG, find_mesh=True, find_recompute=True), FACTS, TOPOLOGY)
    assert len(plans_of_all) == 3 * len(possible_plans)


def test_state_that_is_too_large_is_refused_without_a_compiler() -> None:
    large_facts = facts(shapes={"optimizer/mean/layers.mlp.up.weight": (20, 32768, 8192)})
    possible_plans, refused_plans = plans(CONFIG, large_facts, TOPOLOGY)
    assert MeshPlan(model=1, data=8, fsdp=True, recompute="nothing") in possible_plans
    reason = refused_plans[MeshPlan(model=1, data=8, fsdp=False, recompute="nothing")]
    assert reason == "weights and optimizer need 4.3 GB too much"


def test_micro_batches_keep_the_batch_or_are_powers_of_two() -> None:
    plan = MeshPlan(model=2, data=4, fsdp=False, recompute="nothing")
    config = replace(CONFIG, train=TrainConfig(batch_size=48, accumulation=2))
    candidates = micro_batches(plan, config)
    assert [(each.rows, each.accumulation) for each in candidates] == [
        (1, 12),
        (2, 6),
        (3, 4),
        (4, 3),
        (6, 2),
        (12, 1),
    ]
    assert {each.batch_size for each in candidates} == {48}
    assert candidates[start(candidates, config)].accumulation == 2
    free_config = replace(config, find_mesh=True, find_batch_size=True)
    free_candidates = micro_batches(plan, free_config)
    assert [each.rows for each in free_candidates[:4]] == [1, 2, 4, 8]
    assert free_candidates[start(free_candidates, free_config)].rows == 16  # two devices share them
    assert free_candidates[0].batch_size == 4 * 2
    assert micro_batches(plan, replace(CONFIG, train=TrainConfig(batch_size=6))) == []


def test_bounds() -> None:
    plan = MeshPlan(model=1, data=8, fsdp=False, recompute="nothing")
    (candidate, *_) = micro_batches(plan, CONFIG)
    seconds = least_seconds(candidate, PLANS[plan], FACTS, TOPOLOGY)
    parameters = VOCABULARY * HIDDEN + LAYERS * 7 * HIDDEN**2
    assert seconds["compute"] == pytest.approx(0.95 * 8e11 * 64 / 8 / 197e12)
    assert seconds["memory"] == pytest.approx(2 * 12 * parameters / 819e9)
    assert seconds["communication"] == pytest.approx(2 * 2 * parameters * 7 / 8 / 100e9)
    divided = replace(plan, fsdp=True)
    part = least_seconds(replace(candidate, plan=divided), PLANS[divided], FACTS, TOPOLOGY)
    assert part["memory"] == pytest.approx(seconds["memory"] / 8)
    one_device_candidate = replace(candidate, plan=replace(plan, data=1))
    one_device = Topology.parse("v5e:1x1")
    assert least_seconds(one_device_candidate, PLANS[plan], FACTS, one_device)["communication"] == 0


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    overhead=st.sampled_from([0.0, 1.0, 3.0]),
    gb_per_row=st.sampled_from([0.01, 2.0, 20.0]),
)
def test_the_result_is_that_of_compiling_everything(seed: int, overhead: float, gb_per_row: float) -> None:
    def compiler() -> Compiler:
        return Compiler(seed=seed, overhead=overhead, gb_per_row=gb_per_row)

    best = best_of_all(compiler())
    used_compiler = compiler()
    result = search(used_compiler).run()
    assert (result.tokens_per_second if result else 0.0) == best
    assert len(set(used_compiler.compiled)) == len(used_compiler.compiled)  # none twice


def test_few_steps_are_compiled() -> None:
    compiler = Compiler(seed=3)
    done = search(compiler)
    best = done.run()
    assert len(compiler.compiled) == done.compiled < len(done.trials)
    assert best.status == FITS
    assert done.open() == []


def test_a_search_for_the_batch_ends() -> None:
    compiler = Compiler(gb_per_row=0.3)
    config = replace(CONFIG, find_mesh=True, find_batch_size=True)
    done = search(compiler, config)
    best = done.run()
    assert best.tokens_per_second == best_of_all(compiler, config)
    assert max(trial.candidate.rows for trial in done.trials) <= 512


def test_steps_that_do_not_compile_or_do_not_fit_are_named() -> None:
    compiler = Compiler(gb_per_row=2.5)

    def compile_some(candidate: Candidate) -> dict[str, Any]:
        if candidate.plan.fsdp is True:
            raise RefusedStep("XLA does not like it")
        return compiler(candidate)

    done = search(compile_some)
    best = done.run()
    assert best is not None
    assert {trial.reason for trial in done.trials if trial.status == REFUSED} == {"XLA does not like it"}
    too_large = [trial for trial in done.trials if trial.status == TOO_LARGE]
    assert too_large
    assert all("GB too much" in trial.reason for trial in too_large)
    assert search(Compiler(gb_per_row=1000.0)).run() is None


def test_an_interrupted_search_keeps_what_it_has() -> None:
    compiler = Compiler()

    def compile_some(candidate: Candidate) -> dict[str, Any]:
        if compiler.compiled:
            raise KeyboardInterrupt
        return compiler(candidate)

    done = search(compile_some)
    with pytest.raises(KeyboardInterrupt):
        done.run()
    assert done.best.candidate == compiler.compiled[0]
    assert done.open()


def runs(process: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_search_leaves_no_compiler_behind() -> None:
    search = subprocess.Popen(
        [sys.executable, "-m", "tests.tpu_trainer.busy_compiler"], stdout=subprocess.PIPE, text=True
    )
    compiler = int(search.stdout.readline())
    time.sleep(1)
    assert runs(compiler)
    search.kill()
    search.wait()
    search.stdout.close()
    for _ in range(600):  # it may still be importing TensorFlow
        if not runs(compiler):
            return
        time.sleep(0.2)
    os.kill(compiler, signal.SIGKILL)
    raise AssertionError("it still runs")
