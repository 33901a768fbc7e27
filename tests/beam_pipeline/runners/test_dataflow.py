"""`prepare --runner DataflowRunner` against stand-ins for Dataflow and Cloud Storage."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from apache_beam.portability.api import beam_runner_api_pb2
from google.cloud import dataflow_v1beta3 as api

from beam_pipeline import flex_template
from beam_pipeline.dataset import manifest
from beam_pipeline.runners.dataflow import following
from beam_pipeline.support.errors import DataError, StillRunning, UsageError
from beam_pipeline.verbs import follow, prepare, verify
from tests.beam_pipeline.runs import arguments as arguments_of
from tests.beam_pipeline.runs import content, defects
from tests.google_cloud.dataflow import PROJECT, REGION, Dataflow
from tests.google_cloud.gcs import Gcs

OUT = "gs://data/sets/small"
IMAGE = "europe-west4-docker.pkg.dev/a-project/images/pipeline@sha256:" + "0" * 64
WHAT = ["--max_length", "64", "--unit_bytes", "20000", "--shard_size", "400"]


CORPUS = "gs://data/corpus.txt"


@pytest.fixture
def gcs(gcs: Gcs, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    gcs.put(CORPUS, corpus.read_bytes())
    monkeypatch.setattr(following, "_POLL_SECONDS", 0.1)
    return gcs


@pytest.fixture
def dataflow(gcs: Gcs):
    with Dataflow(gcs) as stand_in:
        yield stand_in


def arguments(dataflow: Dataflow, tokenizer_folder: Path, *extra_options: str) -> list[str]:
    return arguments_of(CORPUS, tokenizer_folder, OUT, *WHAT, *on_dataflow(dataflow), *extra_options)


def on_dataflow(dataflow: Dataflow) -> list[str]:
    dataflow_options = ["--runner", "DataflowRunner", "--project", PROJECT, "--region", REGION]
    dataflow_options += ["--temp_location", "gs://data/tmp", "--dataflow_endpoint", dataflow.url]
    return [*dataflow_options, "--sdk_container_image", IMAGE]


def test_a_dataset_is_verified_by_a_job(
    dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path, capsys: pytest.CaptureFixture
):
    prepare.main(arguments_of(CORPUS, tokenizer_folder, OUT, *WHAT))
    verify.main([OUT, *on_dataflow(dataflow)])
    assert f"{OUT}/train: whole" in capsys.readouterr().out
    path = next(name for name in gcs.objects_below(OUT) if name.endswith(".tfrecord"))
    data = bytearray(gcs.objects_below(OUT)[path])
    data[500] ^= 1
    gcs.put(f"{OUT}/{path}", bytes(data))
    with pytest.raises(DataError, match="has 2 defects"):
        verify.main([OUT, *on_dataflow(dataflow)])
    stdout = capsys.readouterr().out
    assert (
        f"DEFECT {OUT}/{path}: CRC-32C" in stdout and "the checksum of the record's data is wrong" in stdout
    )
    assert [job.name.startswith("verify-small-") for job in dataflow.jobs.values()] == [True, True]
    assert not any("tokenmill-verify" in name for name in gcs.objects_below("gs://data/tmp"))


def test_the_staged_pipeline_makes_the_bytes_of_a_local_run(
    dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    prepare.main(
        arguments(dataflow, tokenizer_folder, "--wait", "--labels", "commit=abc", "--no_use_public_ips")
    )
    captured = capsys.readouterr()
    assert "Dataflow: running" in captured.err
    assert "Dataflow: Worker configuration" in captured.err
    assert f"https://console.cloud.google.com/dataflow/jobs/{REGION}/2026-01-01_00_00_00-1" in captured.err
    assert "1,000 documents" in captured.err and "records written" in captured.err  # the counters
    assert "train: 1,000 documents" in captured.out
    assert defects(OUT) == []
    local_output = tmp_path / "local"
    prepare.main(arguments_of(CORPUS, tokenizer_folder, local_output, *WHAT))
    assert gcs.objects_below(OUT) == content(local_output)

    (job,) = dataflow.jobs.values()
    assert job.name.startswith("prepare-small-")
    assert job.type_ == api.JobType.JOB_TYPE_BATCH
    own_labels = {"program": "tokenmill", "verb": "prepare", "version": "0-1-0"}
    assert dict(job.labels) == {"commit": "abc", **own_labels}
    assert job.environment.service_account_email == f"tokenmill-pipeline@{PROJECT}.iam.gserviceaccount.com"
    assert "use_runner_v2" in job.environment.experiments
    (pool,) = job.environment.worker_pools
    assert pool.machine_type == "n2-standard-4"
    assert pool.autoscaling_settings.max_num_workers == 16
    assert pool.num_threads_per_worker == 2
    assert pool.ip_configuration == api.WorkerIPAddressConfiguration.WORKER_IP_PRIVATE
    # Nothing is installed when a worker starts: at most a list of what the launcher has is there, for the log.
    assert {package.name for package in pool.packages} <= {"submission_environment_dependencies.txt"}
    (container,) = pool.sdk_harness_container_images
    assert container.container_image == IMAGE
    assert container.use_single_core_per_container
    options = dict(job.environment.sdk_pipeline_options)["options"]
    assert options["sdk_location"] == "container"
    assert options["tempLocation" if "tempLocation" in options else "temp_location"].startswith(
        "gs://data/tmp"
    )

    pipeline = dataflow.staged_pipeline(job)
    (environment,) = pipeline.components.environments.values()
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == IMAGE
    assert len(environment.dependencies) == len(pool.packages)
    steps = {step.unique_name.partition("/")[0] for step in pipeline.components.transforms.values()}
    assert {"ReadPlan", "Tokenize", "RowTable", "Route", "GroupByShard", "WriteShards", "Commit"} <= steps


def test_without_wait_it_ends_when_the_job_is_submitted_and_follow_goes_on(
    gcs: Gcs, tokenizer_folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    job_may_run = threading.Event()

    def run_job(dataflow: Dataflow, job: api.Job) -> None:
        job_may_run.wait()
        dataflow.run_staged_pipeline(job)

    monkeypatch.setenv("TOKENMILL_PIPELINE_IMAGE", IMAGE)  # as inside the image
    with Dataflow(gcs, run_job) as dataflow:
        command = arguments(dataflow, tokenizer_folder)
        image_index = command.index("--sdk_container_image")
        command = command[:image_index] + command[image_index + 2 :]
        prepare.main(command)
        captured = capsys.readouterr()
        assert "will be complete when the job is done" in captured.out
        assert f"follow 2026-01-01_00_00_00-1 --project {PROJECT} --region {REGION}" in captured.err
        assert "train/manifest.json" not in gcs.objects_below(OUT)
        before = gcs.objects_below(OUT)
        with pytest.raises(
            UsageError,
            match=r"the Dataflow job prepare-small-\w+ \(2026-01-01_00_00_00-1\), .*the job is active",
        ):
            prepare.main([*command, "--overwrite"])
        local_command = arguments_of(CORPUS, tokenizer_folder, OUT)
        with pytest.raises(
            UsageError, match=r"\(2026-01-01_00_00_00-1\).*delete gs://data/sets/small/_staging/run.lock"
        ):
            prepare.main(local_command)  # which cannot ask Dataflow
        with pytest.raises(UsageError, match=r"\(2026-01-01_00_00_00-1\), .*the job is active"):
            prepare.main([*local_command, "--dataflow_endpoint", dataflow.url])
        assert gcs.objects_below(OUT) == before
        job_may_run.set()
        dataflow_options = ["--project", PROJECT, "--region", REGION, f"--dataflow_endpoint={dataflow.url}"]
        follow.main(["2026-01-01_00_00_00-1", *dataflow_options])
        assert "is done" in capsys.readouterr().out
        assert defects(OUT) == []
        with pytest.raises(
            StillRunning, match=r"cannot be reached any more .*no job other, or it is not yours"
        ):
            follow.main(["other", *dataflow_options])


def test_a_failed_job_is_told_with_our_own_message(dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path):
    gcs.put("gs://data/corpus.txt", b"a document\nnot \xff UTF-8\n")
    with pytest.raises(
        DataError, match=r"(?s)2026-01-01_00_00_00-1 ended as FAILED: .*corpus.txt.*UTF-8.*console"
    ) as error:
        prepare.main(arguments(dataflow, tokenizer_folder, "--wait"))
    assert "Traceback" not in str(error.value)
    assert gcs.objects_below(OUT) == {}


def test_the_log_of_a_templates_launcher_is_shown(gcs: Gcs, tokenizer_folder: Path):
    def run_job(dataflow: Dataflow, job: api.Job) -> None:
        log = "gs://data/tmp/template_launches/1/console_logs"
        gcs.put(log, b"prepare: --tokenizer gs://data/none: no tokenizer.json there\n")
        dataflow.add_message(job, "BASIC", f"Console log from launcher will be available at {log}.")
        raise RuntimeError(
            "Error occurred in the launcher container: Template launch failed. See console logs."
        )

    with (
        Dataflow(gcs, run_job) as dataflow,
        pytest.raises(
            DataError, match=r"(?s)Template launch failed.*gs://data/none: no tokenizer.json there"
        ),
    ):
        prepare.main(arguments(dataflow, tokenizer_folder, "--wait"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_job(gcs: Gcs, tokenizer_folder: Path, number: signal.Signals):
    def run_job(dataflow: Dataflow, job: api.Job) -> None:
        os.kill(os.getpid(), number)
        assert dataflow.cancelled[job.id].wait(20)

    before = signal.getsignal(number)
    with (
        Dataflow(gcs, run_job) as dataflow,
        pytest.raises(DataError, match=r"2026-01-01_00_00_00-1 was cancelled"),
    ):
        prepare.main(arguments(dataflow, tokenizer_folder, "--wait"))
    assert signal.getsignal(number) is before
    assert gcs.objects_below(OUT) == {}


def test_a_job_that_dataflow_refuses(dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path):
    dataflow.refuse = (400, "(1a2b): The workflow could not be created. Causes: quota of CPUs")
    with pytest.raises(DataError, match=r"Dataflow rejects the job: .*quota of CPUs"):
        prepare.main(arguments(dataflow, tokenizer_folder))
    assert gcs.objects_below(OUT) == {}
    # There is a job of this name, which may be the one that was to write here.
    dataflow.refuse = (409, "(3c4d): There is already an active job named prepare-small")
    with pytest.raises(StillRunning, match="already an active job"):
        prepare.main(arguments(dataflow, tokenizer_folder))
    assert "_staging/run.lock" in gcs.objects_below(OUT)


def test_what_is_missing_or_wrong_is_said_at_once_before_anything_is_asked_or_written(
    dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path, tmp_path: Path
):
    with pytest.raises(UsageError) as error:
        prepare.main(arguments_of(CORPUS, tokenizer_folder, tmp_path / "out", "--runner", "DataflowRunner"))
    for part in ("--project", "--region", "--temp_location", "--sdk_container_image", "cannot write there"):
        assert part in str(error.value)
    wrong_values = {
        "--sdk_container_image": ("repository/image", "must have a tag or a digest"),
        "--temp_location": ("/tmp/x", "must be in a bucket"),
        "--labels": ("Team=NLP", "KEY=VALUE"),
        "--max_num_workers": ("0", "must be at least 1"),
        "--num_workers": ("1000000", "more than --max_num_workers 4"),
        "--job_name": ("My_Job", "lower-case"),
    }
    for option, (value, message) in wrong_values.items():
        with pytest.raises(UsageError, match=message):
            prepare.main(arguments(dataflow, tokenizer_folder, "--max_num_workers", "4", option, value))
    assert gcs.requests == []
    assert not dataflow.jobs


def test_a_templates_launcher_describes_the_job_and_does_not_submit_it(
    dataflow: Dataflow, gcs: Gcs, tokenizer_folder: Path, capsys: pytest.CaptureFixture
):
    target = "gs://data/tmp/template_launches/1/job_object"
    command = arguments(dataflow, tokenizer_folder)
    pairs = [f"{name}={value}" for name, value in zip(command[::2], command[1::2], strict=True)]
    template_arguments = [*pairs, f"--template_location={target}", "--job_name=mine"]
    template_arguments += ["--segment_ids=true", "--resume=false"]
    assert flex_template.launch([*template_arguments, "--launcher_option_of_tomorrow=1"]) == 0
    captured = capsys.readouterr()
    assert "unknown option --launcher_option_of_tomorrow" in captured.err
    assert f"described in {target}" in captured.err
    assert not dataflow.jobs
    job = api.Job.from_json(gcs.objects_below("gs://data/tmp/template_launches/1")["job_object"])
    assert job.name == "mine"
    assert job.environment.worker_pools[0].sdk_harness_container_images[0].container_image == IMAGE
    dataflow.run_staged_pipeline(job)
    assert defects(OUT) == []
    assert "segment_ids" in manifest.read_manifest(f"{OUT}/train")["features"]
    assert flex_template.launch([*template_arguments, "--tokenizer=gs://data/none"]) == 2
    assert "gs://data/none" in capsys.readouterr().err
