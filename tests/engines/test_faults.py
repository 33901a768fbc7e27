"""Faults on Flink leave no dataset or a whole one, and the same command then gives the same bytes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from beam_pipeline.verbs.verify import check_dataset
from tests.beam_pipeline.conftest import make_documents
from tests.beam_pipeline.runs import content
from tests.end_to_end.conftest import Pipeline
from tests.engines.clusters import Flink
from tests.engines.launched import STAGES, Run, Start, python_workers
from tests.engines.servers import wait_for
from tests.engines.test_same_bytes import Record, record

UNITS = 60  # at least


@pytest.fixture(scope="module")
def arguments(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """The arguments of runs with all stages that take a while: the slow engine, many units, many shards."""
    text = tmp_path_factory.mktemp("text") / "lines.txt"
    documents = make_documents(40_000, seed=2)
    text.write_text("\n".join(documents + documents[::10]) + "\n", encoding="utf-8")
    return [
        *("prepare", "--input", text, "--tokenizer", tokenizer, "--splits", "train=0.9,test=0.1"),
        *("--dedup", "exact", "--engine", "hf", "--unit_bytes", text.stat().st_size // UNITS),
        *("--max_length", 64, "--shard_size", 100),
    ]


@pytest.fixture(scope="module")
def expected(
    arguments: list[object], run_successfully: Pipeline, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """The files that the in-process runner writes."""
    folder = tmp_path_factory.mktemp("expected") / "out"
    run_successfully(*arguments, "--output", folder)
    return content(folder)


@pytest.fixture
def start(flink: Flink, arguments: list[object], tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts `prepare` with parallelism 2. Its processes end with the test."""
    with contextlib.ExitStack() as stack:

        def start_run(*options: str) -> Run:
            run = Run([*arguments, *flink.options(2), *options], tmp_path / "out")
            stack.callback(run.kill)
            return run

        yield start_run
    flink.end_jobs()
    flink.pool.kill_workers()


def outlive_killed_task_manager(flink: Flink, run: Run, step: str) -> None:
    """Kills the task manager that executes a step of a run, and checks that the run ends well all the same."""
    with pause_processes(python_workers(flink)):  # so that the stage does not end
        job = flink.running_job()
        number = flink.task_manager_of(job, step)
        flink.kill_task_manager(number)
    try:
        status, messages = run.end()
    finally:
        flink.restart_task_manager(number)
    assert status == 0, messages
    assert flink.failures(job), "the job did not notice"


@pytest.mark.parametrize("stage", STAGES)
def test_a_job_outlives_a_killed_task_manager(
    stage: str, flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", f"a task manager is killed while {stage}")
    run = start()
    run.wait_for(stage)
    outlive_killed_task_manager(flink, run, STAGES[stage].step)
    assert_whole(run.output, expected)
    record_property("result", "the other one takes over: the same bytes")


def test_a_job_outlives_a_killed_worker(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "a Python worker is killed while tokenizing")
    run = start()
    run.wait_for("tokenizing")
    job = flink.running_job()
    os.kill(python_workers(flink)[0], signal.SIGKILL)
    status, messages = run.end()
    assert flink.failures(job), "the job did not notice"
    if status == 0:
        assert_whole(run.output, expected)
        record_property("result", "the same bytes")
    else:  # the restart strategy gave up before the task manager replaced the worker
        assert "--resume keeps them" in messages, messages
        assert_resumes(run, start, expected)
        record_property("result", "no dataset; `--resume` gives the same bytes")


def test_a_cancelled_job_leaves_no_dataset_and_can_be_resumed(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "the job is cancelled on Flink's web page")
    run = start()
    run.wait_for("writing shards")
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
    job = flink.running_job()
    flink.restart_job_server()
    status, messages = run.end()
    assert status == 1 and messages.splitlines()[-1].startswith("prepare: the job service does not know"), (
        messages
    )
    assert "Traceback" not in messages
    # The job still runs on the cluster, but stops at the next file that it would publish.
    assert flink.wait_for_the_end(job) == "FAILED"
    assert_resumes(run, start, expected)
    record_property("result", "no dataset; `--resume` gives the same bytes")


def test_an_interrupt_stops_the_job(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "Ctrl-C")
    run = start()
    run.wait_for("tokenizing")
    job = flink.running_job()
    run.interrupt()
    status, messages = run.end()
    assert status == 130 and "job: cancelling it, as requested" in messages, messages
    # The job server does not cancel the job on the cluster. It stops at the next file that it would publish.
    assert flink.wait_for_the_end(job) in ("CANCELED", "FAILED")
    assert_resumes(run, start, expected)
    record_property("result", "the job stops; `--resume` gives the same bytes")


def test_a_job_whose_launcher_was_killed_finishes_the_dataset(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "the launcher is killed")
    run = start()
    run.wait_for("tokenizing")
    job = flink.running_job()
    run.kill()
    assert flink.wait_for_the_end(job) == "FINISHED"
    status, messages = start("--resume").end()  # of a finished dataset: adds the report
    assert status == 0 and "job: " not in messages, messages
    assert_whole(run.output, expected)
    record_property("result", "the job finishes the dataset: the same bytes")


def test_a_job_whose_launcher_was_killed_stops_if_another_run_takes_over(
    flink: Flink, start: Start, expected: dict[str, bytes], record_property: Record
) -> None:
    record(record_property, flink, "`prepare`", "the launcher is killed, and at once run again")
    run = start()
    run.wait_for("hashing documents")
    job = flink.running_job()
    with pause_processes(python_workers(flink)):  # until the second run has begun
        run.kill()
        second = start("--resume")
        lock = run.output / "_staging" / "run.lock"
        wait_for("the second run", lambda: f'"pid": {second.pid},' in lock.read_text() or None)
    status, messages = second.end()
    assert status == 0, messages
    assert flink.wait_for_the_end(job) == "FAILED"
    assert any("another run has taken it over" in failure for failure in flink.failures(job))
    assert_whole(run.output, expected)
    record_property("result", "the first job stops; `--resume` gives the same bytes")


@contextlib.contextmanager
def pause_processes(processes: Sequence[int]) -> Iterator[None]:
    """Stops processes while the block runs, if they have not ended yet."""

    def send(number: signal.Signals) -> None:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


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
