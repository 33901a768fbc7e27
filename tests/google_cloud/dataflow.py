"""A local stand-in for Dataflow, for Beam's DataflowRunner. It accepts jobs and runs their staged pipelines locally.

It serves REST. `dataflow_grpc` serves the same jobs by gRPC, which Beam uses unless its endpoint is on localhost.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from google.api_core.datetime_helpers import from_rfc3339
from google.cloud import dataflow_v1beta3 as api

from tests.google_cloud.loopback import Loopback, Request, Response

PROJECT, REGION = "a-project", "europe-west4"
_ACTIVE = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_CANCELLING")


class Bucket(Protocol):
    """A stand-in for Cloud Storage."""

    def read(self, url: str) -> bytes:
        """Returns the bytes of the object gs://bucket/name."""


class Refusal(Exception):
    """The service refuses a request, with an HTTP status and a message."""

    def __init__(self, status: int, message: str):
        super().__init__(status, message)
        self.status, self.message = status, message


class Dataflow(Loopback):
    """The stand-in. Each job runs in a thread.

    Args:
        bucket: Where pipelines are staged.
        run_job: Executes a job; by default, runs its staged pipeline. An exception fails the job. It must end soon
            after `cancelled[job.id]` is set.
        project: The only project that the stand-in serves.
        region: The only region.

    Attributes:
        jobs: The submitted jobs by id, with their current states.
        refuse: (status, message) of the answer to the next submission; None to accept it.
        cancelled: For each job, whether a client has asked to cancel it.
    """

    def __init__(
        self,
        bucket: Bucket,
        run_job: Callable[[Dataflow, api.Job], None] | None = None,
        project: str = PROJECT,
        region: str = REGION,
    ):
        super().__init__()
        self.jobs: dict[str, api.Job] = {}
        self.refuse: tuple[int, str] | None = None
        self.cancelled: dict[str, threading.Event] = defaultdict(threading.Event)
        self._bucket = bucket
        self._work = run_job or Dataflow.run_staged_pipeline
        self._place = (project, region)
        self._messages: dict[str, list[api.JobMessage]] = defaultdict(list)
        self._metrics: dict[str, list[api.MetricUpdate]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._creating = threading.Lock()

    @property
    def active_jobs(self) -> list[api.Job]:
        """The jobs that have not ended."""
        return [job for job in self.jobs.values() if job.current_state.name in _ACTIVE]

    def serve(self, request: Request) -> Response:
        call = re.fullmatch(
            r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/]+)(/messages|/metrics)?)?", request.path
        )
        try:
            if call is None:
                raise Refusal(501, f"{request.path}: the stand-in has no such call")
            project, region, number, subresource = call.groups()
            return _answer(
                self._serve(request, {"project_id": project, "location": region}, number, subresource)
            )
        except Refusal as refusal:
            return Response.error(refusal.status, refusal.message)

    def _serve(self, request: Request, place: dict, number: str | None, subresource: str | None):
        match request.method, number, subresource:
            case "POST", None, None:
                # from_json raises for unknown fields
                return self.create_job(api.CreateJobRequest(job=api.Job.from_json(request.body), **place))
            case "GET", None, None:
                return self.list_jobs(api.ListJobsRequest(**place))
            case "GET", _, None:
                return self.get_job(api.GetJobRequest(job_id=number, **place))
            case "PUT", _, None:
                updated_job = api.Job.from_json(request.body)
                return self.update_job(api.UpdateJobRequest(job_id=number, job=updated_job, **place))
            case "GET", _, "/messages":
                start_time = from_rfc3339(request.query.get("startTime", "1970-01-01T00:00:00Z"))
                messages_request = api.ListJobMessagesRequest(job_id=number, start_time=start_time, **place)
                return self.list_job_messages(messages_request)
            case "GET", _, "/metrics":
                return self.get_job_metrics(api.GetJobMetricsRequest(job_id=number, **place))
        raise Refusal(501, f"{request.method} {request.path}: the stand-in has no such call")

    # The calls of the API. They raise Refusal.

    def create_job(self, request: api.CreateJobRequest) -> api.Job:
        self._check_place(request)
        if self.refuse:
            raise Refusal(*self.refuse)
        job = request.job
        with self._creating:
            for active_job in self.active_jobs:
                if (
                    active_job.name == job.name
                ):  # the client sees from its client_request_id that it is another one
                    return active_job
            job.id = f"2026-01-01_00_00_00-{next(self._numbers)}"
            job.current_state = api.JobState.JOB_STATE_PENDING
            self.jobs[job.id] = job
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return job

    def list_jobs(self, request: api.ListJobsRequest) -> api.ListJobsResponse:
        self._check_place(request)
        return api.ListJobsResponse(jobs=self.active_jobs)

    def get_job(self, request: api.GetJobRequest) -> api.Job:
        return self._find(request)

    def update_job(self, request: api.UpdateJobRequest) -> api.Job:
        job = self._find(request)
        assert request.job.requested_state == api.JobState.JOB_STATE_CANCELLED, request
        if job in self.active_jobs:
            job.current_state = api.JobState.JOB_STATE_CANCELLING
            self.cancelled[job.id].set()
        return job

    def list_job_messages(self, request: api.ListJobMessagesRequest) -> api.ListJobMessagesResponse:
        self._find(request)
        start_time = request.start_time
        messages = [
            message
            for message in self._messages[request.job_id]
            if not start_time or message.time >= start_time
        ]
        return api.ListJobMessagesResponse(job_messages=messages)

    def get_job_metrics(self, request: api.GetJobMetricsRequest) -> api.JobMetrics:
        self._find(request)
        return api.JobMetrics(metrics=self._metrics[request.job_id])

    def _check_place(self, request) -> None:
        if (request.project_id, request.location) != self._place:
            raise Refusal(403, f"no permission in {request.project_id}, {request.location}")

    def _find(self, request) -> api.Job:
        self._check_place(request)
        if request.job_id not in self.jobs:
            raise Refusal(403, f"no job {request.job_id}, or it is not yours")
        return self.jobs[request.job_id]

    def _run(self, job: api.Job) -> None:
        time.sleep(0.1)  # so that the launcher sees the job pending
        if not self.cancelled[job.id].is_set():
            job.current_state = api.JobState.JOB_STATE_RUNNING
        self.add_message(job, "BASIC", "Worker configuration: n2-standard-4 in europe-west4-b.")
        try:
            self._work(self, job)
        except Exception as error:
            self.add_message(job, "DEBUG", "a debug message")
            self.add_message(job, "ERROR", f"Workflow failed. Causes: {error}")
            job.current_state = api.JobState.JOB_STATE_FAILED
            return
        state = "JOB_STATE_CANCELLED" if self.cancelled[job.id].is_set() else "JOB_STATE_DONE"
        job.current_state = api.JobState[state]

    def add_message(self, job: api.Job, importance: str, text: str) -> None:
        """Adds a message to the job."""
        kind = api.JobMessageImportance[f"JOB_MESSAGE_{importance}"]
        timestamp = {"seconds": int(time.time())}
        message = api.JobMessage(message_text=text, message_importance=kind, time=timestamp)
        self._messages[job.id].append(message)

    def staged_pipeline(self, job: api.Job) -> beam_runner_api_pb2.Pipeline:
        """Returns the staged pipeline of a job."""
        url = dict(job.environment.sdk_pipeline_options)["options"]["pipelineUrl"]
        return beam_runner_api_pb2.Pipeline.FromString(self._bucket.read(url))

    def run_staged_pipeline(self, job: api.Job) -> None:
        """Runs the staged pipeline in this process. Only its environments are changed: they are not containers."""
        pipeline = self.staged_pipeline(job)
        for environment in pipeline.components.environments.values():
            environment.urn, environment.payload = "beam:env:embedded_python:v1", b""
        result = fn_runner.FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))
        result.wait_until_finish()
        self.count(job, result.metrics().query()["counters"])

    def count(self, job: api.Job, counters: list) -> None:
        """Sets the job's metrics to the counters of a pipeline's result."""
        self._metrics[job.id] = []
        for counter in counters:
            name = api.MetricStructuredName(
                origin="user",
                name=counter.key.metric.name,
                context={"namespace": counter.key.metric.namespace, "step": counter.key.step or ""},
            )
            for context in ({}, {"tentative": "true"}):
                update = api.MetricUpdate(
                    name=name, kind="Sum", scalar=counter.committed or counter.attempted
                )
                update.name.context.update(context)
                self._metrics[job.id].append(update)


def _answer(message) -> Response:
    body = type(message).to_json(message, use_integers_for_enums=False).encode()
    return Response(200, body, {"Content-Type": "application/json; charset=UTF-8"})
