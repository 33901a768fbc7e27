"""Runs of `fit --strategy pjrt`: killed, continued by another strategy, diverging."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.faults import run_all
from tests.tpu_trainer.small_runs import (
    assert_equal_but_for_rounding,
    fit_arguments,
    learnt,
    metrics,
    weights,
)
from tests.tpu_trainer.test_never_losing_work import (
    DIVERGING,
    MLM,
    SMALL,
    Chain,
    assert_same_weights,
    statuses,
)
from tpu_trainer.support.errors import ExitStatus

DEVICES = {"environment": cpu_devices.environment(4)}
PJRT: dict[str, Any] = {"strategy": "pjrt", "mesh.model": 2, "mesh.fsdp": True}
# A small epsilon would turn rounding into full steps.
OPTIONS = SMALL | MLM | {"optimizer.epsilon": 3e-2, "model.config.num_attention_heads": 2}
PROFILED = {"profile.steps": "20:21"}


@pytest.fixture(scope="module")
def outcomes(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name → the run's folder, and exit status and output of each of its processes."""
    root = tmp_path_factory.mktemp("pjrt")
    pjrt, cpu = PJRT, {"strategy": "cpu"}
    chains: dict[str, Chain] = {
        "undisturbed": [({}, pjrt)],
        "killed": [({"kill_at": 10}, pjrt), ({}, pjrt | PROFILED)],
        "cpu": [({}, cpu)],
        "both": [({"kill_at": 8}, cpu), ({"kill_at": 16}, pjrt), ({}, cpu)],
    }
    return outcomes_of(dataset, root, chains)


def outcomes_of(dataset: Path, root: Path, chains: dict[str, Chain]) -> dict[str, Any]:
    """Runs chains, each in the folder of its name."""
    plan = [
        [
            (fit_arguments(dataset, root / name, OPTIONS | options), fault | DEVICES)
            for fault, options in chain
        ]
        for name, chain in chains.items()
    ]
    results = run_all(root, plan)
    return {name: (root / name, result) for name, result in zip(chains, results, strict=True)}


def test_a_killed_run_ends_with_the_same_bits(outcomes: dict[str, Any]) -> None:
    undisturbed_run, result = outcomes["undisturbed"]
    assert statuses(result) == [0], result[0][1]
    assert "4 device(s) (cpu), data 2, model 2" in result[0][1]
    run, result = outcomes["killed"]
    assert statuses(result) == [-signal.SIGKILL, 0], result[-1][1]
    assert learnt(metrics(run)) == learnt(metrics(undisturbed_run))
    assert_same_weights(run, undisturbed_run)
    assert list((run / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb"))


def test_strategies_continue_each_others_checkpoints_with_the_same_losses(outcomes: dict[str, Any]) -> None:
    reference, result = outcomes["cpu"]
    assert statuses(result) == [0], result[0][1]
    for name, expected in (("undisturbed", [0]), ("both", [-signal.SIGKILL, -signal.SIGKILL, 0])):
        run, result = outcomes[name]
        assert statuses(result) == expected, result[-1][1]
        assert_equal_but_for_rounding(run, reference)


@pytest.mark.wide
def test_a_loss_that_is_not_finite_stops_with_its_step(dataset: Path, tmp_path: Path) -> None:
    outcomes = outcomes_of(dataset, tmp_path / "runs", {"diverged": [({}, PJRT | DIVERGING)]})
    run, [(status, output)] = outcomes["diverged"]
    assert status == ExitStatus.DIVERGED
    assert "step 2: loss nan" in output
    assert all(np.isfinite(value).all() for value in weights(run).values())
