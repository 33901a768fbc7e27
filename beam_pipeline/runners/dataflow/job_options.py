"""The options of a Dataflow job: checking them before anything is submitted, and setting defaults."""

from __future__ import annotations

import hashlib
import os
import re

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

from beam_pipeline import __version__
from beam_pipeline.support.errors import UsageError

# The image built from deploy/pipeline.Dockerfile sets this variable to its own name. Jobs launched inside it use it.
IMAGE_VARIABLE = "TOKENMILL_PIPELINE_IMAGE"

# Runs four SDK processes with 4 GB of memory each. Dataflow's own default for batch jobs has one core.
MACHINE_TYPE = "n2-standard-4"
# Limits what a job can cost by mistake. More than about 100 GB of text need a larger value.
MAX_NUM_WORKERS = 16
# The work is CPU-bound, and there is already a process per core: one thread computes while the other reads or writes
# files. With Dataflow's default of 12 threads, 12 shards would be in memory.
HARNESS_THREADS = 2
WORKER_ACCOUNT = "tokenmill-pipeline"

_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")
_IMAGE = re.compile(r"[^\s@]+/[^\s@/]+(:[\w.-]{1,128}|(:[\w.-]{1,128})?@sha256:[0-9a-f]{64})")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9](/.*)?")


def complete(options: PipelineOptions, *, verb: str, output: str) -> None:
    """Checks the options of a Dataflow job, and sets defaults for missing ones.

    Args:
        options: The options, which are changed in place.
        verb: The verb that the job runs, for its name and labels.
        output: The folder that the job writes. The job's default name follows from it, because Dataflow rejects a
            second job of the same name while the first is active.

    Raises:
        UsageError: If options are missing or wrong. The message names all of them and how to fix them.
    """
    cloud, worker = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    if not worker.sdk_container_image:
        worker.sdk_container_image = os.environ.get(IMAGE_VARIABLE) or None
    cloud.temp_location = cloud.temp_location or cloud.staging_location
    problems = [*_missing_options(cloud, worker), *_malformed_options(cloud, worker)]
    if not _BUCKET_PATH.fullmatch(output):
        problems.append(
            f"--output {output}: Dataflow's workers cannot write there; choose a folder in a bucket, gs://…"
        )
    if problems:
        raise UsageError("--runner DataflowRunner: " + "; ".join(problems))
    if not cloud.job_name:
        cloud.job_name = job_name(verb, output)
    if not cloud.service_account_email and ":" not in cloud.project:
        cloud.service_account_email = f"{WORKER_ACCOUNT}@{cloud.project}.iam.gserviceaccount.com"
    if not worker.machine_type:
        worker.machine_type = MACHINE_TYPE
    if not worker.max_num_workers:
        worker.max_num_workers = max(MAX_NUM_WORKERS, worker.num_workers or 0)
    debug = options.view_as(DebugOptions)
    if not debug.number_of_worker_harness_threads:
        debug.number_of_worker_harness_threads = HARNESS_THREADS
    own_labels = {
        "program": "tokenmill",
        "verb": verb,
        "version": re.sub(r"[^-_a-z0-9]", "-", __version__.lower()),
    }
    user_labels = [label.partition("=")[0] for label in cloud.labels or []]
    cloud.labels = [
        *(cloud.labels or []),
        *(f"{name}={text}" for name, text in own_labels.items() if name not in user_labels),
    ]
    # The image contains everything, so workers download and install nothing when they start.
    options.view_as(SetupOptions).sdk_location = "container"
    _validate_with_beam(options)


def job_name(verb: str, output: str) -> str:
    """Returns the default name of the job that writes `output`: readable and unique."""
    folder_name = re.sub(r"[^a-z0-9]+", "-", output.rstrip("/").rpartition("/")[2].lower()).strip("-")[:40]
    return f"{verb}-{folder_name or 'output'}-{hashlib.sha256(output.encode()).hexdigest()[:8]}"


def _missing_options(cloud: GoogleCloudOptions, worker: WorkerOptions) -> list[str]:
    required = {
        "project": (cloud.project, "the project that pays for the job"),
        "region": (cloud.region, "where it runs, e.g. europe-west4; best where the buckets are"),
        "temp_location": (cloud.temp_location, "a folder in a bucket for staged files, gs://BUCKET/tmp"),
        "sdk_container_image": (
            worker.sdk_container_image,
            "the image built from deploy/pipeline.Dockerfile",
        ),
    }
    return [f"--{name} is missing: {meaning}" for name, (value, meaning) in required.items() if not value]


def _malformed_options(cloud: GoogleCloudOptions, worker: WorkerOptions) -> list[str]:
    problems = []
    for name in ("temp_location", "staging_location"):
        path = getattr(cloud, name)
        if path and not _BUCKET_PATH.fullmatch(path):
            problems.append(f"--{name} {path}: must be in a bucket, gs://…")
    if worker.sdk_container_image and not _IMAGE.fullmatch(worker.sdk_container_image):
        problems.append(
            f"--sdk_container_image {worker.sdk_container_image}: must have a tag or a digest, "
            "REGISTRY/IMAGE@sha256:…; otherwise the image could change while the job runs"
        )
    if cloud.job_name and not _JOB_NAME.fullmatch(cloud.job_name):
        problems.append(
            f"--job_name {cloud.job_name}: must consist of lower-case letters, digits and '-', and start with a letter"
        )
    for label in cloud.labels or []:
        if not _LABEL.fullmatch(label) and "{" not in label:
            problems.append(
                f"--labels {label}: must be KEY=VALUE, in lower-case letters, digits, '-' and '_'"
            )
    for name in ("num_workers", "max_num_workers", "disk_size_gb"):
        value = getattr(worker, name)
        if value is not None and value < 1:
            problems.append(f"--{name} {value}: must be at least 1")
    if worker.num_workers and worker.max_num_workers and worker.num_workers > worker.max_num_workers:
        problems.append(
            f"--num_workers {worker.num_workers}: more than --max_num_workers {worker.max_num_workers}"
        )
    return problems


def _validate_with_beam(options: PipelineOptions) -> None:
    """Runs Beam's validation early: Beam would run it only after the input is planned and files are staged."""
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

    problems = PipelineOptionsValidator(options, DataflowRunner()).validate()
    if problems:
        raise UsageError("--runner DataflowRunner: " + "; ".join(map(str, problems)))
