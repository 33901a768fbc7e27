"""Runs on a job service: Beam's own, in this process. tests/engines/ has those on Flink, Spark and Prism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.runner import PipelineState

from beam_pipeline import __main__
from beam_pipeline.options.beam_names import check_names
from beam_pipeline.runners import portable
from beam_pipeline.steps import job
from beam_pipeline.support.errors import DataError, StillRunning, UsageError
from tests.beam_pipeline.runs import content

EMBEDDED = ["--runner", "PortableRunner", "--job_endpoint", "embed", "--environment_type", "LOOPBACK"]


def test_a_run_shows_states_and_counters_and_ends_with_the_summary_of_a_local_run(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--input", str(corpus), "--tokenizer", str(tokenizer_folder), "--max_length", "32"]
    assert __main__.run("prepare", [*command, "--output", str(tmp_path / "local")]) == 0
    local_summary = capsys.readouterr().out.splitlines()
    assert __main__.run("prepare", [*command, "--output", str(tmp_path / "out"), *EMBEDDED]) == 0
    captured = capsys.readouterr()
    assert content(tmp_path / "out") == content(tmp_path / "local")
    time_line = next(index for index, line in enumerate(local_summary) if " of text in " in line)
    assert captured.out.splitlines()[:time_line] == local_summary[:time_line]
    states = [line for line in captured.err.splitlines() if line.startswith("job: ")]
    assert "job: running" in states and "job: done" in states
    assert "1,000 documents" in states[-1] and "records written" in states[-1]


def test_an_error_in_the_data_ends_with_the_message_of_a_local_run(
    tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"text": "whole"}\n{"text": "broken\n')
    command = ["--input", str(tmp_path / "broken.jsonl"), "--tokenizer", str(tokenizer_folder)]
    assert __main__.run("prepare", [*command, "--output", str(tmp_path / "out"), *EMBEDDED]) == 1
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith(f"prepare: {tmp_path}/broken.jsonl, line 2 (byte 18): broken JSON")


class Unreachable(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode):
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "no such job"


class Job:
    """A submitted job: its states, one for each poll, and its messages."""

    def __init__(self, states: list[str | Exception], errors: Sequence[str]):
        self._states = states
        self._message_stream = self._messages(errors)

    @property
    def state(self) -> str:
        state = self._states.pop(0)
        if isinstance(state, Exception):
            raise state
        return state

    def _messages(self, errors: Sequence[str]) -> Iterator[beam_job_api_pb2.JobMessagesResponse]:
        for error in errors:
            message = beam_job_api_pb2.JobMessage(
                importance=beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR, message_text=error
            )
            yield beam_job_api_pb2.JobMessagesResponse(message_response=message)


def follow(states: list[str | Exception], errors: Sequence[str] = ()) -> None:
    portable.PortableJobFollower(Job(states, errors), describe_finished=lambda: "3 of 9 work units").follow()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("java.io.IOException: Insufficient number of network buffers", "the job ended as FAILED: java.io"),
        (
            "org.apache.flink.runtime.client.JobCancellationException: Job was cancelled.",
            "^the job was cancelled$",
        ),
        ('Traceback …\nbeam_pipeline.support.errors.DataError: a.txt: bad [while running "x"]', "a.txt: bad"),
    ],
)
def test_a_failed_job_gives_its_reason_without_a_traceback_of_the_launcher(error: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        follow([PipelineState.RUNNING, PipelineState.FAILED], [error])


def test_a_job_that_someone_cancelled_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="the job was cancelled"):
        follow([PipelineState.RUNNING, PipelineState.CANCELLED])
    assert capsys.readouterr().err.splitlines() == [
        "job: running",
        "job: 3 of 9 work units",
        "job: cancelled",
    ]


def test_no_progress_is_shown_after_the_commit_has_deleted_the_files_that_show_it(tmp_path: Path) -> None:
    assert job.Job.describe_finished(SimpleNamespace(staging=str(tmp_path / "deleted"))) == ""


def test_a_restarted_job_server_that_does_not_know_the_job_ends_the_run_but_not_its_finished_work() -> None:
    with pytest.raises(StillRunning, match=r"NOT_FOUND: no such job.*--resume"):
        follow([PipelineState.RUNNING, Unreachable(grpc.StatusCode.NOT_FOUND)])


def test_a_missing_job_service_is_reported_with_its_address(
    corpus: Path, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable_runner = [
        "--runner",
        "PortableRunner",
        "--job_endpoint",
        "127.0.0.1:1",
        "--job_server_timeout",
        "1",
    ]
    command = [
        "--input",
        str(corpus),
        "--tokenizer",
        str(tokenizer_folder),
        "--output",
        str(tmp_path / "out"),
    ]
    environment = ["--environment_type", "EXTERNAL", "--environment_config", "127.0.0.1:2"]
    assert __main__.run("prepare", [*command, *unreachable_runner, *environment]) == 1
    stderr = capsys.readouterr().err
    assert "prepare: --job_endpoint 127.0.0.1:1: no job service answers there" in stderr
    assert "Traceback" not in stderr


class JobService(beam_job_api_pb2_grpc.JobServiceServicer):
    """Knows one option, like a runner's job service."""

    def DescribePipelineOptions(self, request, context):
        option = beam_job_api_pb2.PipelineOptionDescriptor(
            name="object_reuse", type=beam_job_api_pb2.PipelineOptionType.BOOLEAN
        )
        return beam_job_api_pb2.DescribePipelineOptionsResponse(options=[option])


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1))
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(JobService(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_the_options_of_the_runner_behind_a_job_service_are_accepted(endpoint: str) -> None:
    portable_runner = ["--runner", "PortableRunner", "--job_endpoint", endpoint]
    check_names([*portable_runner, "--object_reuse"], [])
    with pytest.raises(UsageError, match="unknown option --object_reused:"):
        check_names([*portable_runner, "--object_reused"], [])
