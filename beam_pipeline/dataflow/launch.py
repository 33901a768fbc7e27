"""Submitting a pipeline to Dataflow."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from beam_pipeline.dataflow.following import CancelRequest, JobFollower
from beam_pipeline.errors import DataError, StillRunning, UsageError

if TYPE_CHECKING:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

Answer = TypeVar("Answer")


def refuse_second(options: PipelineOptions) -> None:
    """Makes sure that no active job has the same name: it would be writing the same folder.

    Must come before the folder is touched. In a Flex Template's launcher Dataflow has made sure of it already, and the
    active job of that name is our own.

    Raises:
      UsageError: naming the active job.
    """
    from google.cloud import dataflow_v1beta3 as api

    cloud = options.view_as(GoogleCloudOptions)
    if cloud.template_location:
        return
    request = api.ListJobsRequest(
        project_id=cloud.project, location=cloud.region, filter=api.ListJobsRequest.Filter.ACTIVE
    )
    for job in _asked(lambda: list(new_client(options)._jobs_client.list_jobs(request))):
        if job.name == cloud.job_name:
            raise UsageError(
                f"the Dataflow job {job.id} is named {cloud.job_name}, too, and is active, so it may be writing the "
                f"same output: wait for it (follow {job.id}), cancel it, or give this one another --job_name"
            )


def run(build: Callable[[beam.Pipeline], None], options: PipelineOptions, *, wait: bool) -> bool:
    """Builds a pipeline and submits it.

    Args:
      build: adds the pipeline's steps.
      options: complete, see `job_options.complete`.
      wait: follows the job to its end; SIGINT and SIGTERM cancel it then.

    Returns:
      Whether the job is done; False where it was submitted only.

    Raises:
      DataError: where it could not be submitted, or failed, or was cancelled.
      StillRunning: where it cannot be followed any more.
    """
    cloud = options.view_as(GoogleCloudOptions)
    pipeline = beam.Pipeline(options=options)
    build(pipeline)
    request = CancelRequest()
    with request.watched() if wait else contextlib.nullcontext():
        result = _asked(pipeline.run)
        if not getattr(result, "has_job", False):  # for a template, or with --dry_run
            where = f"is described in {cloud.template_location}: Dataflow starts it"
            print(f"the job {where if cloud.template_location else 'was not submitted'}", file=sys.stderr)
            return False
        follower = JobFollower(new_client(options), result.job_id(), cancel=request)
        print(f"Dataflow job {result.job_id()}: {follower.url}", file=sys.stderr, flush=True)
        if not wait:
            where = f"--project {cloud.project} --region {cloud.region}"
            print(f"python -m beam_pipeline follow {result.job_id()} {where}", file=sys.stderr)
            return False
        follower.follow()
    return True


def new_client(options: PipelineOptions) -> DataflowApplicationClient:
    """Beam's client of Dataflow, for the options' project and region."""
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

    return DataflowApplicationClient(options)


def _asked(call: Callable[[], Answer]) -> Answer:
    """What a call to Dataflow or Cloud Storage returns.

    Raises:
      DataError: where it was refused, with what the service says.
      StillRunning: where it was refused because there is such a job already: what that has written is left alone.
    """
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError
    from google.api_core.exceptions import Conflict, GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        return call()
    except (Conflict, DataflowJobAlreadyExistsError) as error:
        raise StillRunning(f"Dataflow does not take the job: {error}") from error
    except (GoogleAPICallError, GoogleAuthError) as error:
        raise DataError(f"Dataflow does not take the job: {error}") from error
