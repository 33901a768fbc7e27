"""Submitting a pipeline to Dataflow."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from beam_pipeline.dataset.lock_holder import CloudJob, Lock
from beam_pipeline.runners.dataflow.following import ENDED, CancelRequest, DataflowJobFollower
from beam_pipeline.support.errors import DataError, StillRunning

if TYPE_CHECKING:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

Answer = TypeVar("Answer")

_SECONDS_TO_ANSWER = 30.0

_log = logging.getLogger(__name__)


def job_of(options: PipelineOptions) -> CloudJob:
    """Returns the job that these options submit. `job_options.complete` has completed them."""
    cloud = options.view_as(GoogleCloudOptions)
    return CloudJob(project=cloud.project, region=cloud.region, name=cloud.job_name)


def is_active(options: PipelineOptions, job: CloudJob) -> bool:
    """Returns whether the job in a folder's lock is active.

    In the launcher of a Flex Template, an active job with the name of the launched job is the launcher's own, because
    Dataflow rejects a second one.

    Args:
        options: The options of this run. The job may be in another project or region.
        job: The job in the lock.

    Raises:
        DataError: If Dataflow does not answer.
    """
    from google.cloud import dataflow_v1beta3 as api

    own_cloud = options.view_as(GoogleCloudOptions)
    if own_cloud.template_location and (job.project, job.region, job.name) == (
        own_cloud.project,
        own_cloud.region,
        own_cloud.job_name,
    ):
        return False
    job_options = PipelineOptions.from_dictionary(
        options.get_all_options(drop_default=True) | {"project": job.project, "region": job.region}
    )
    jobs = new_client(job_options)._jobs_client  # because Beam's own calls retry for many minutes
    location = {"project_id": job.project, "location": job.region}
    try:
        if job.id:
            request = api.GetJobRequest(job_id=job.id, **location)
            candidates = [_service_answer(lambda: jobs.get_job(request, timeout=_SECONDS_TO_ANSWER))]
        else:
            list_request = api.ListJobsRequest(filter=api.ListJobsRequest.Filter.ACTIVE, **location)
            candidates = _service_answer(
                lambda: list(jobs.list_jobs(list_request, timeout=_SECONDS_TO_ANSWER))
            )
    except OSError as error:
        raise DataError(f"Dataflow does not answer: {error}") from error
    states = [
        candidate.current_state.name.removeprefix("JOB_STATE_")
        for candidate in candidates
        if candidate.name == job.name
    ]
    return any(state not in ENDED for state in states)


def run(
    build: Callable[[beam.Pipeline], None], options: PipelineOptions, *, lock: Lock | None, wait: bool
) -> bool:
    """Builds a pipeline and submits it.

    Args:
        build: Adds the pipeline's steps.
        options: The options of the job, completed by `job_options.complete`.
        lock: The lock of the folder that the job writes. The job is recorded in it, and the lock is kept if the job may
            still be active when this function returns or raises.
        wait: Whether to follow the job until it ends. SIGINT and SIGTERM then cancel the job.

    Returns:
        True if the job is done, False if it was only submitted.

    Raises:
        DataError: If it could not be submitted, failed, or was cancelled.
        StillRunning: If it cannot be followed any more.
    """
    cloud, job = options.view_as(GoogleCloudOptions), job_of(options)
    pipeline = beam.Pipeline(options=options)
    build(pipeline)
    request = CancelRequest()
    if lock:
        lock.name_job(job, renewed=True)  # from here on the job may exist, even if this process dies
    try:
        with request.watched() if wait else contextlib.nullcontext():
            result = _service_answer(pipeline.run)
            if not getattr(result, "has_job", False):  # for a template
                template = f"is described in {cloud.template_location}, and Dataflow starts it"
                _log.info("the job %s", template if cloud.template_location else "was not submitted")
                if lock and cloud.template_location:
                    lock.name_job(job, renewed=False)
                return False
            if lock:
                lock.name_job(replace(job, id=result.job_id()), renewed=wait)
            follower = DataflowJobFollower(new_client(options), result.job_id(), cancel=request)
            _log.info("Dataflow job %s: %s", result.job_id(), follower.url)
            if not wait:
                flags = f"--project {cloud.project} --region {cloud.region}"
                _log.info("python -m beam_pipeline follow %s %s", result.job_id(), flags)
                return False
            follower.follow()
    except (StillRunning, KeyboardInterrupt):
        if lock:
            lock.keep()
        raise
    return True


def new_client(options: PipelineOptions) -> DataflowApplicationClient:
    """Returns Beam's client of Dataflow, for the options' project and region."""
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

    return DataflowApplicationClient(options)


def _service_answer(call: Callable[[], Answer]) -> Answer:
    """Returns the result of a call to Dataflow or Cloud Storage.

    Raises:
        DataError: If the service rejects it.
        StillRunning: If Dataflow rejects it because the job already exists. That job's files must not be deleted.
    """
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
    from google.api_core.exceptions import Conflict, GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        return call()
    except (Conflict, DataflowJobAlreadyExistsError) as error:
        raise StillRunning(f"Dataflow rejects the job: {error}") from error
    except (GoogleAPICallError, GoogleAuthError) as error:
        raise DataError(f"Dataflow rejects the job: {error}") from error
