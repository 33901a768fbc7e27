"""Runs of `fit --strategy pjrt` on several processes: lost, terminated, continued by another number of them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.tpu_trainer import cpu_devices
from tests.tpu_trainer.faults import Fault, run_all
from tests.tpu_trainer.ports import free_ports
from tests.tpu_trainer.small_runs import assert_equal_but_for_rounding, fit_arguments
from tests.tpu_trainer.test_never_losing_work import CLM, SMALL
from tpu_trainer.data.dataset import open_split
from tpu_trainer.runs.run_folder import RunFolder
from tpu_trainer.support.errors import ExitStatus
from tpu_trainer.training.interruption import AgreedEnd
from tpu_trainer.verbs.command_line import parse

# A small epsilon would turn rounding into full steps.
OPTIONS: dict[str, Any] = SMALL | CLM | {
    "strategy": "pjrt",
    "optimizer.epsilon": 3e-2,
    "model.config.n_head": 4,
    "train.log_every": 1,
    "train.evaluate_every": 9,
}  # fmt: skip
FSDP = {"mesh.model": 2, "mesh.fsdp": True}
# Both processes feed the same rows, and have halves of them.
DIVIDED_ROWS = {"mesh.model": 2, "mesh.sequence": 2}


def write_own_disks(root: Path, dataset: Path) -> None:
    """Writes a folder for each of two hosts: other validation rows, and the first also has a finished run."""
    for number, name in enumerate(("validation", "train")):
        (root / f"host{number}").mkdir()
        (root / f"host{number}" / "validation").symlink_to(dataset / name)
    finished_run = RunFolder(str(root / "host0" / "run"))
    arguments = fit_arguments(dataset, "run", OPTIONS)
    finished_run.start(parse([str(each) for each in arguments])[1], str(dataset / "tokenizer"))
    finished_run.write_summary({"steps": 24, "data": open_split(str(dataset / "train")).fingerprint})


Process = tuple[Fault, dict[str, Any]]
"""The fault of a process, and options of its own."""


def meeting_processes(
    run: Path, dataset: Path, options: dict[str, Any], *processes: Process, devices: int = 2
) -> list[Any]:
    """Returns the arguments and settings of each process of a run, each with so many devices."""
    meeting = {
        "mesh.coordinator_address": f"127.0.0.1:{free_ports(1)[0]}",
        "mesh.num_processes": len(processes),
    }
    return [
        (
            fit_arguments(
                dataset, run, OPTIONS | options | meeting | {"mesh.process_id": index} | own_options
            ),
            {"environment": cpu_devices.environment(devices), "lost_after": 10} | fault,
        )
        for index, (fault, own_options) in enumerate(processes)
    ]


@pytest.fixture(scope="module")
def outcomes(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Name → the run's folder, and exit status and output of each of its processes."""
    root = tmp_path_factory.mktemp("hosts")

    def one_process(run: str, options: dict[str, Any]) -> Any:
        return fit_arguments(dataset, root / run, OPTIONS | options), {
            "environment": cpu_devices.environment(4)
        }

    def several_processes(run: str, options: dict[str, Any], *processes: Process) -> list[Any]:
        return meeting_processes(root / run, dataset, options, *processes)

    clock_options = FSDP | {"train.checkpoint_minutes": 1e-6, "train.checkpoint_every": 100}
    # The evaluation after step 9 makes a checkpoint, of which process 1 writes half of its part.
    lost_runs = several_processes("run", clock_options, ({}, {}), ({"kill_in_write_of": 9}, {}))
    terminated_runs = several_processes("run", DIVIDED_ROWS, ({}, {}), ({"terminate_at": 13}, {}))
    different_runs = several_processes("different", FSDP, ({}, {}), ({}, {"train.batch_size": 16}))
    write_own_disks(root, dataset)
    relative = {"output_dir": "run", "data.validation": "validation"}
    disks = several_processes(
        "run", relative, *(({"in_folder": str(root / f"host{number}")}, {}) for number in (0, 1))
    )
    evaluate = ["evaluate", "--run", root / "alone", "--strategy", "pjrt", "--mesh.fsdp", True]
    address = f"127.0.0.1:{free_ports(1)[0]}"
    meeting = ["--mesh.coordinator_address", address, "--mesh.num_processes", 2, "--mesh.process_id"]
    devices = {"environment": cpu_devices.environment(2), "lost_after": 10}
    other_mesh = [([*evaluate[:-1], index == 0, *meeting, index], devices) for index in range(2)]
    # Two at a time, so those that meet start together.
    chains = {
        "process 0": [lost_runs[0], terminated_runs[0], one_process("run", FSDP)],
        "process 1": [lost_runs[1], terminated_runs[1]],
        "different 0": [different_runs[0]],
        "different 1": [different_runs[1]],
        "disk 0": [disks[0]],
        "disk 1": [disks[1]],
        "alone": [
            one_process("alone", FSDP),
            (evaluate, {"environment": cpu_devices.environment(4)}),
            other_mesh[0],
        ],
        "other mesh": [other_mesh[1]],  # waits for the first
    }
    results = run_all(root, list(chains.values()))
    return {"folder": root} | dict(zip(chains, results, strict=True))


def test_a_run_of_several_processes_has_the_losses_and_weights_of_one(outcomes: dict[str, Any]) -> None:
    """Also if one is killed in a save, another mesh is terminated by a signal to one, and one process finishes."""
    (status, output), *_ = outcomes["alone"]
    assert status == 0, output
    (lost, terminated, finished), (killed, signalled) = outcomes["process 0"], outcomes["process 1"]
    assert killed[0] == -signal.SIGKILL, killed[1]
    assert lost[0] == ExitStatus.INTERRUPTED, lost[1]
    assert "error: lost process 1; the same command on all hosts continues" in lost[1]
    assert "the checkpoint of step 9 could not be written (another process is lost" in lost[1]
    assert (terminated[0], signalled[0]) == (ExitStatus.INTERRUPTED, ExitStatus.INTERRUPTED), terminated[1]
    assert finished[0] == 0, finished[1]
    run, reference = outcomes["folder"] / "run", outcomes["folder"] / "alone"
    assert_equal_but_for_rounding(run, reference)


def test_checkpoints_by_the_clock_and_after_a_signal_are_agreed_by_all_processes(
    outcomes: dict[str, Any],
) -> None:
    (_, terminated, finished), (_, signalled) = outcomes["process 0"], outcomes["process 1"]
    continued, stopped = (
        int(re.search(r"fit: continues after step (\d+)\n", output)[1])
        for _, output in (terminated, finished)
    )
    assert continued == 2 + AgreedEnd.AHEAD  # asked for after step 1
    for _, output in (terminated, signalled):
        assert re.findall(r"^step (\d+)/24 ", output, re.MULTILINE)[-1] == str(stopped), output
    assert stopped in (14 + AgreedEnd.AHEAD, 15 + AgreedEnd.AHEAD)


def test_different_options_are_found_before_training(outcomes: dict[str, Any]) -> None:
    for name in ("different 0", "different 1"):
        [(status, output)] = outcomes[name]
        assert status == ExitStatus.USAGE, output
        assert "--train.batch_size is 8 in process 0 and 16 in process 1" in output
    assert not (outcomes["folder"] / "different").exists()


def test_folders_that_are_not_shared_are_found_before_training(outcomes: dict[str, Any]) -> None:
    """One host would end and another train, or they would evaluate different numbers of batches: all would wait."""
    for name in ("disk 0", "disk 1"):
        [(status, output)] = outcomes[name]
        assert status == ExitStatus.USAGE, output
        assert re.search(
            r"the validation data is '\w+/validation' in process 0 and '\w+/train' in process 1", output
        )
        assert "the last step of a finished run in --output_dir is 24 in process 0 and None in" in output
        assert "--output_dir on a shared disk or in a bucket" in output


def test_evaluate_on_a_mesh_repeats_the_last_evaluation(outcomes: dict[str, Any]) -> None:
    status, output = outcomes["alone"][1]
    assert status == 0, output
    run = outcomes["folder"] / "alone"
    evaluation = json.loads((run / "evaluation.json").read_text())
    expected = json.loads((run / "summary.json").read_text())["eval"]
    assert evaluation["step"] == 24
    assert {name: evaluation[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_evaluate_rejects_processes_with_different_meshes(outcomes: dict[str, Any]) -> None:
    for status, output in (outcomes["alone"][2], outcomes["other mesh"][0]):
        assert status == ExitStatus.USAGE, output
        assert "--mesh.fsdp is True in process 0 and False in process 1; start all with" in output


@pytest.mark.wide
def test_four_processes_continue_after_one_is_killed_in_a_write(
    outcomes: dict[str, Any], dataset: Path, tmp_path: Path
) -> None:
    """Each writes a quarter of a checkpoint. The first and the last of them are killed, one after the other."""
    writes = FSDP | {"train.checkpoint_minutes": 1e-6, "train.checkpoint_every": 100}
    faults: list[list[Process]] = [
        [({}, {}), ({}, {}), ({}, {}), ({"kill_in_write_of": 9}, {})],
        [({"kill_in_write_of": 18}, {}), ({}, {}), ({}, {}), ({}, {})],
        [({}, {})] * 4,
    ]
    for number, processes in enumerate(faults):
        runs = meeting_processes(tmp_path / "run", dataset, writes, *processes, devices=1)
        results = run_all(tmp_path / str(number), [[run] for run in runs], at_once=4)
        statuses = [status for [(status, _)] in results]
        if number < 2:
            killed = 3 if number == 0 else 0
            assert statuses[killed] == -signal.SIGKILL, results[killed]
            assert all(status != 0 for status in statuses), results
        else:
            assert statuses == [0] * 4, results
    assert_equal_but_for_rounding(tmp_path / "run", outcomes["folder"] / "alone")
