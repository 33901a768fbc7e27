"""Faults on Flink leave no dataset or a whole one, and the same command then gives the same bytes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beam_pipeline.run import _processes
from beam_pipeline.verify import check_dataset
from tests.beam_pipeline.conftest import make_documents
from tests.end_to_end.conftest import Pipeline
from tests.engines.clusters import Flink
from tests.engines.conftest import content
from tests.engines.servers import ROOT, wait_for
from tests.engines.test_same_bytes import Record, record

UNITS = 60  # at least
Start = Callable[..., "Run"]


class Run:
    """`prepare` on Flink, in a process of its own.

    Args:
        arguments: Its arguments.
        output: Its output folder.
    """

    def __init__(self, arguments: list[object], output: Path):
        self.output = output
        self._process = subprocess.Popen(
            [sys.executable, "-m", "beam_pipeline", *map(str, arguments), "--output", str(output)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs inherit an ignored SIGINT, and so would this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for(self, stage: str) -> None:
        """Waits until the run is in the middle of a stage."""
        pattern = {"tokenizing": "_staging/*/units/*.rows", "writing": "*/*.tfrecord"}[stage]

        def begun() -> bool | None:
            return len(list(self.output.glob(pattern))) >= 5 or None

        wait_for(f"the middle of {stage}", begun, self._check_running)
        self._check_running()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """Waits until the run ends, and returns its exit status and its messages."""
        _, messages = self._process.communicate(timeout=500)
        return self._process.returncode, messages

    def _check_running(self) -> None:
        assert self._process.poll() is None, self._process.communicate()[1]
        assert not list(self.output.glob("*/manifest.json")), "the dataset is already finished"


@pytest.fixture(scope="module")
def arguments(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The arguments of runs that take a while: the slow engine, many units, many shards."""
    text = tmp_path_factory.mktemp("text") / "lines.txt"
    text.write_text("\n".join(make_documents(40_000, seed=2)) + "\n", encoding="utf-8")
    return [
        *("prepare", "--input", text, "--tokenizer", tokenizer, "--splits", "train=0.9,test=0.1"),
        *(
            "--engine",
            "hf",
            "--unit_bytes",
            text.stat().st_size // UNITS,
            "--max_length",
            64,
            "--shard_size",
            100,
        ),
    ]


@pytest.fixture(scope="module")
def expected(
    arguments: list[object], made: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What the in-process runner writes."""
    folder = tmp_path_factory.mktemp("expected") / "out"
    made(*arguments, "--output", folder)
    return content(folder)


@pytest.fixture
def start(flink: Flink, arguments: list[object], tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts `prepare` with parallelism 2. Its process ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str) -> Run:
            run = Run([*arguments, *flink.options(2), *options], tmp_path / "out")
            stack.callback(run._process.kill)
            return run

        yield begin


@pytest.mark.parametrize("stage", ["tokenizing", "writing"])
def test_a_job_outlives_a_killed_task_manager(
    stage: str, flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", f"a task manager is killed while {stage}")
    run = start()
    run.wait_for(stage)
    flink.kill_task_manager(0)  # both have a subtask of each stage
    try:
        status, messages = run.end()
    finally:
        flink.restart_task_manager(0)
    assert status == 0, messages
    assert_whole(run.output, expected)
    record_property("result", "the other one takes over: the same bytes")


def test_a_job_outlives_a_killed_worker(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "a Python worker is killed while tokenizing")
    run = start()
    run.wait_for("tokenizing")
    os.kill(python_workers(flink)[0], signal.SIGKILL)
    status, messages = run.end()
    assert status == 0, messages
    assert_whole(run.output, expected)
    record_property("result", "the same bytes")


def test_a_cancelled_job_leaves_no_dataset_and_can_be_resumed(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "the job is cancelled on Flink's web page")
    run = start()
    run.wait_for("writing")
    flink.cancel(flink.running_job())
    status, messages = run.end()
    assert (status, messages.splitlines()[-1]) == (1, "prepare: the job was cancelled"), messages
    assert_resumes(run, start, expected)
    record_property("result", "no dataset; `--resume` gives the same bytes")


def test_a_restarted_job_server_leaves_no_dataset_and_the_run_can_be_resumed(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "the job server is restarted")
    run = start()
    run.wait_for("tokenizing")
    flink.restart_job_server()
    status, messages = run.end()
    assert status == 1 and messages.splitlines()[-1].startswith("prepare: the job service does not know"), (
        messages
    )
    assert "Traceback" not in messages
    # The job still runs on the cluster, but stops at the next file that it would publish.
    wait_for("the end of the job", lambda: None if flink.running_job() else True)
    assert_resumes(run, start, expected)
    record_property("result", "no dataset; `--resume` gives the same bytes")


def test_an_interrupt_cancels_the_job(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "Ctrl-C")
    run = start()
    run.wait_for("tokenizing")
    job = flink.running_job()
    run.interrupt()
    status, messages = run.end()
    assert status == 130 and "job: cancelling it, as requested" in messages, messages
    assert flink.jobs()[job] == "CANCELED"
    assert_resumes(run, start, expected)
    record_property("result", "the job is cancelled; `--resume` gives the same bytes")


def assert_resumes(run: Run, start: Start, expected: dict[str, bytes]) -> None:
    """Checks that a run left no dataset, and that it can be resumed."""
    assert not list(run.output.glob("*/manifest.json"))
    assert list(run.output.glob("_staging/*/units/*.rows"))
    status, messages = start("--resume").end()
    assert status == 0, messages
    assert_whole(run.output, expected)


def assert_whole(output: Path, expected: dict[str, bytes]) -> None:
    assert [defects for _, defects in check_dataset(str(output))] == [[], []]
    assert content(output) == expected


def python_workers(flink: Flink) -> list[int]:
    """Returns the process ids of the running Python workers."""
    parents = dict(_processes())

    def is_worker(pid: int) -> bool:
        while pid in parents and pid != flink.pool.server.pid:
            pid = parents[pid]
        return pid == flink.pool.server.pid

    return [pid for pid in parents if b"sdk_worker_main" in command_of(pid) and is_worker(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:  # it has just ended
        return b""
