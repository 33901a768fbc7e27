"""Processes of --strategy pjrt that join, differ, fail or are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpu_trainer.config import MeshConfig
from tpu_trainer.devices.pjrt.peers import joined
from tpu_trainer.support.errors import ExitStatus, UsageError


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The results of peer_processes.py."""
    pytest.importorskip("jax")
    completed = subprocess.run(
        [sys.executable, "-m", "tests.tpu_trainer.peer_processes"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[4],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_processes_exchange_values_and_end_together(report: dict[str, Any]) -> None:
    assert [status for status, _ in report["same"]] == [0, 0], report["same"]
    assert "Exception" not in report["same"][0][1]
    # Met by a second run and a process that comes late.
    assert "cannot listen on port" in report["same"][1][1]
    assert "another program is at" in report["same"][1][1]
    for status, output in report["different"]:
        assert status == ExitStatus.USAGE, output
        assert "do not match: --seed is 0 in process 0 and 1 in process 1; use one seed" in output


def test_the_loss_or_failure_of_one_ends_the_others(report: dict[str, Any]) -> None:
    (status, output), (failed_status, reason) = report["fails"]
    assert (failed_status, reason.strip()) == (ExitStatus.USAGE, "mine")
    assert status == ExitStatus.INTERRUPTED, output
    assert "error: process 1 has failed: mine; the same command on all hosts continues" in output
    (status, output), _ = report["lost"]
    assert status == ExitStatus.INTERRUPTED, output
    assert "error: lost process 1; " in output
    # The coordination service has died with it: JAX aborts its clients.
    _, (status, output) = report["first_lost"]
    assert status == -signal.SIGABRT, output
    assert "another task died" in output


def test_a_process_does_not_wait_forever_for_the_others(report: dict[str, Any]) -> None:
    (status, output), _ = report["alone"]
    assert status == ExitStatus.INTERRUPTED, output
    assert "process 0 did not meet the others within 3 s: process(es) 1 are missing" in output


def test_other_flags_of_the_compiler_are_rejected(report: dict[str, Any]) -> None:
    """The processes would compile other programs, whose results differ or whose devices wait for each other."""
    (waiting_status, _), (status, output) = report["flags"]
    assert (waiting_status, status) == (ExitStatus.INTERRUPTED, ExitStatus.USAGE), output
    assert "XLA_FLAGS is '--xla_a=1 --xla_b=0' in process 0 and '--xla_a=1 --xla_b=1' in process 1" in output


def test_a_loss_between_meeting_and_training_is_an_error_of_one_line(report: dict[str, Any]) -> None:
    for case, killed_process in (("killed_after_meeting", 1), ("first_killed_after_meeting", 0)):
        assert report[case][killed_process][0] == -signal.SIGKILL
        status, output = report[case][1 - killed_process]
        assert status == ExitStatus.INTERRUPTED, output
        assert "error: the processes have met, but one was lost before JAX connected them" in output


@pytest.mark.parametrize(
    ("variables", "options", "message"),
    [
        ({}, {"num_processes": 2}, "need --mesh.coordinator_address and --mesh.process_id, too"),
        ({"JAX_PROCESS_ID": "two"}, {}, "JAX_PROCESS_ID is 'two': not a number"),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            {},
            "process_id is 2: must be less than --mesh.num_processes, 2",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "a", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
            {},
            "is 'a': must be HOST:PORT, with a port from 1 to 65535",
        ),
    ],
)
def test_incomplete_options_are_rejected(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any], message: str
) -> None:
    pytest.importorskip("jax")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message), joined(MeshConfig(**options)):
        pass


def test_without_options_a_process_is_alone() -> None:
    pytest.importorskip("jax")
    for config in (MeshConfig(), MeshConfig(num_processes=1, coordinator_address="a:1", process_id=0)):
        with joined(config) as peers:
            assert (peers.count, peers.is_first, peers.gather("x")) == (1, True, ["x"])
