"""Processes that use the same output folder, and the state after one of them ends."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_pipeline.support.errors import UsageError
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import PROGRAM, arguments, defects, of_session, wait_for_the_end

MODES = {
    "in this process": [],
    "worker processes": ["--direct_running_mode", "multi_processing", "--direct_num_workers", "2"],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text("\n".join(documents * 2), encoding="utf-8")
    return path


@pytest.fixture
def argv(source: Path, tokenizer_folder: Path, tmp_path: Path) -> list[str]:
    """The arguments of all runs."""
    size = ["--max_length", "32", "--shard_size", "60", "--unit_bytes", "100000"]
    return arguments(source, tokenizer_folder, tmp_path / "out", *size)


@pytest.fixture
def start(argv: list[str]) -> Iterator:
    """Returns a function that starts `prepare` in its own session. The processes of the session end with the test."""
    processes: list[subprocess.Popen] = []

    def start_run(*options: str) -> subprocess.Popen:
        run = subprocess.Popen(
            [*PROGRAM, *argv, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell's background jobs inherit an ignored SIGINT, and so would these.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        processes.append(run)
        return run

    yield start_run
    for run in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)


def wait_for_shards(run: subprocess.Popen, out: Path) -> None:
    deadline = time.monotonic() + 240
    while not list(out.glob("train/*.tfrecord")):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("mode", "second"),
    [
        pytest.param("in this process", [], marks=pytest.mark.wide),
        ("worker processes", ["--seed", "1", "--overwrite"]),
    ],
)
def test_of_two_that_start_together_one_makes_the_dataset(
    start, tmp_path: Path, mode: str, second: list[str]
):
    runs = [start(*MODES[mode]), start(*MODES[mode], *second)]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    statuses = [run.returncode for run in runs]
    assert 0 in statuses
    for status, error in zip(statuses, errors, strict=True):
        if status:  # it came while the other ran, or after it had ended
            assert status == 2, error
            assert "another run writes there" in error or "contains" in error
            assert "Traceback" not in error
    assert defects(tmp_path / "out") == []


def test_a_second_run_is_refused_while_the_first_stands_still(argv, start, tmp_path: Path):
    first = start(*MODES["worker processes"])
    wait_for_shards(first, tmp_path / "out")
    os.killpg(first.pid, signal.SIGSTOP)
    with pytest.raises(UsageError, match=f"prepare, run by process {first.pid} on"):
        prepare.main([*argv, "--seed", "1", "--overwrite"])
    os.killpg(first.pid, signal.SIGCONT)
    error = first.communicate(timeout=300)[1]
    assert first.returncode == 0, error
    assert defects(tmp_path / "out") == []


def test_after_the_launcher_was_killed_no_process_goes_on_and_another_run_can_start(
    argv, start, tmp_path: Path
):
    first = start("--runner", "DirectRunner", *MODES["worker processes"])
    wait_for_shards(first, tmp_path / "out")
    first.kill()
    first.wait(timeout=60)
    wait_for_the_end(first.pid)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(UsageError, match="contains another run's dataset"):
        prepare.main([*argv, "--seed", "1"])
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path for path in after if path.is_file()} <= {path for path in before if path.name != "run.lock"}
    prepare.main([*argv, "--seed", "1", "--overwrite"])
    assert defects(tmp_path / "out") == []


VERIFY_IN_PROCESSES = """
if __name__ == "__main__":
    import sys, time
    from beam_pipeline.verbs import verify
    verify._BYTES_FOR_ALL_CORES = 0
    for _ in verify.check_dataset(sys.argv[1]):
        print("checked", flush=True)
        time.sleep(600)  # its processes wait for more work
"""


def test_the_processes_that_verify_a_dataset_end_with_their_launcher(dataset: Path, tmp_path: Path):
    program = tmp_path / "verify_in_processes.py"
    program.write_text(VERIFY_IN_PROCESSES)
    command = [sys.executable, str(program), str(dataset)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert run.stdout.readline() == b"checked\n"
    assert len(of_session(run.pid)) > 1
    run.kill()
    run.communicate(timeout=60)
    wait_for_the_end(run.pid)


@pytest.mark.parametrize(
    ("mode", "number", "status", "word"),
    [
        ("in this process", signal.SIGINT, 130, "interrupted"),
        pytest.param("worker processes", signal.SIGINT, 130, "interrupted", marks=pytest.mark.wide),
        ("worker processes", signal.SIGTERM, 143, "terminated"),
    ],
)
def test_a_signal_ends_all_with_one_line_and_the_rest_can_be_resumed(
    argv, start, tmp_path: Path, mode: str, number: signal.Signals, status: int, word: str
):
    first = start(*MODES[mode])
    wait_for_shards(first, tmp_path / "out")
    if number == signal.SIGINT:  # a terminal sends it to all processes
        os.killpg(first.pid, number)
    else:
        first.send_signal(number)
    error = first.communicate(timeout=120)[1]
    assert first.returncode == status, error
    assert error.splitlines()[-1] == f"prepare: {word}; run the same command with --resume to continue"
    assert "Traceback" not in error
    wait_for_the_end(first.pid)
    assert not (tmp_path / "out" / "_staging" / "run.lock").exists()
    prepare.main([*argv, "--resume"])
    assert defects(tmp_path / "out") == []


def test_a_limit_on_the_size_of_files_names_the_file(argv, tmp_path: Path):
    run = subprocess.run(
        [*PROGRAM, *argv, "--max_length", "512", "--shard_size", "100000"],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )
    assert run.returncode == 1
    line = run.stderr.splitlines()[-1]
    assert "File too large: " in line and str(tmp_path / "out") in line
