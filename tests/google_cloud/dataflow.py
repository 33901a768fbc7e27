"""A local stand-in for Dataflow, for Beam's DataflowRunner. It accepts jobs and runs their staged pipelines locally."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import fn_runner
from google.api_core.datetime_helpers import from_rfc3339
from google.cloud import dataflow_v1beta3 as api

from tests.google_cloud.gcs import Gcs
from tests.google_cloud.loopback import Loopback, Request, Response

PROJECT, REGION = "a-project", "europe-west4"
_JOBS = rf"/v1b3/projects/{PROJECT}/locations/{REGION}/jobs"
_ACTIVE = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_CANCELLING")


class Dataflow(Loopback):
    """The stand-in. Each job runs in a thread.

    Args:
        gcs: The stand-in that pipelines are staged in.
        work: Does the work of a job; by default, runs its staged pipeline. An exception fails the job.

    Attributes:
        jobs: The submitted jobs by id, with their current states.
        refuse: (status, message) of the answer to the next submission; None to accept it.
    """

    def __init__(self, gcs: Gcs, work: Callable[[Dataflow, api.Job], None] | None = None):
        super().__init__()
        self.jobs: dict[str, api.Job] = {}
        self.refuse: tuple[int, str] | None = None
        self.cancelled = threading.Event()
        self._gcs = gcs
        self._work = work or Dataflow.run_staged_pipeline
        self._messages: dict[str, list[api.JobMessage]] = defaultdict(list)
        self._metrics: dict[str, list[api.MetricUpdate]] = defaultdict(list)
        self._numbers = itertools.count(1)

    def serve(self, request: Request) -> Response:
        call = f"{request.method} {request.path}"
        if match := re.fullmatch(rf"POST {_JOBS}", call):
            return self._create(request)
        if match := re.fullmatch(rf"GET {_JOBS}", call):
            active = [job for job in self.jobs.values() if job.current_state.name in _ACTIVE]
            return _answer(api.ListJobsResponse(jobs=active))
        if match := re.fullmatch(rf"(GET|PUT) {_JOBS}/([^/]+)(/messages|/metrics)?", call):
            if match[2] not in self.jobs:
                return Response.error(403, f"no job {match[2]}, or it is not yours")
            return self._about(request, match[2], match[3] or "")
        return Response.error(501, f"{call}: the stand-in has no such call")

    def _create(self, request: Request) -> Response:
        job = api.Job.from_json(request.body)  # raises for unknown fields
        if self.refuse:
            return Response.error(*self.refuse)
        job.id = f"2026-01-01_00_00_00-{next(self._numbers)}"
        job.current_state = api.JobState.JOB_STATE_PENDING
        self.jobs[job.id] = job
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return _answer(job)

    def _about(self, request: Request, number: str, what: str) -> Response:
        job = self.jobs[number]
        if request.method == "PUT":
            asked = api.Job.from_json(request.body)
            assert asked.requested_state == api.JobState.JOB_STATE_CANCELLED, asked
            job.current_state = api.JobState.JOB_STATE_CANCELLING
            self.cancelled.set()
        if what == "/messages":
            since = from_rfc3339(request.query.get("startTime", "1970-01-01T00:00:00Z"))
            found = [message for message in self._messages[number] if message.time >= since]
            return _answer(api.ListJobMessagesResponse(job_messages=found))
        if what == "/metrics":
            return _answer(api.JobMetrics(metrics=self._metrics[number]))
        return _answer(job)

    def _run(self, job: api.Job) -> None:
        time.sleep(0.1)  # so that the launcher sees the job pending
        job.current_state = api.JobState.JOB_STATE_RUNNING
        self.say(job, "BASIC", "Worker configuration: n2-standard-4 in europe-west4-b.")
        try:
            self._work(self, job)
        except Exception as error:
            self.say(job, "DEBUG", "a debug message")
            self.say(job, "ERROR", f"Workflow failed. Causes: {error}")
            job.current_state = api.JobState.JOB_STATE_FAILED
            return
        ended = "JOB_STATE_CANCELLED" if self.cancelled.is_set() else "JOB_STATE_DONE"
        job.current_state = api.JobState[ended]

    def say(self, job: api.Job, importance: str, text: str) -> None:
        """Adds a message to the job."""
        kind = api.JobMessageImportance[f"JOB_MESSAGE_{importance}"]
        moment = {"seconds": int(time.time())}
        message = api.JobMessage(message_text=text, message_importance=kind, time=moment)
        self._messages[job.id].append(message)

    def staged_pipeline(self, job: api.Job) -> beam_runner_api_pb2.Pipeline:
        """Returns the staged pipeline of a job."""
        url = dict(job.environment.sdk_pipeline_options)["options"]["pipelineUrl"]
        bucket, name = url.removeprefix("gs://").split("/", 1)
        return beam_runner_api_pb2.Pipeline.FromString(self._gcs.objects[bucket, name].data)

    def run_staged_pipeline(self, job: api.Job) -> None:
        """Runs the staged pipeline in this process. Only its environments are changed: they are not containers."""
        pipeline = self.staged_pipeline(job)
        for environment in pipeline.components.environments.values():
            environment.urn, environment.payload = "beam:env:embedded_python:v1", b""
        result = fn_runner.FnApiRunner().run_via_runner_api(pipeline, PipelineOptions([]))
        result.wait_until_finish()
        for counter in result.metrics().query()["counters"]:
            name = api.MetricStructuredName(
                origin="user",
                name=counter.key.metric.name,
                context={"namespace": counter.key.metric.namespace, "step": counter.key.step},
            )
            for context in ({}, {"tentative": "true"}):
                update = api.MetricUpdate(name=name, kind="Sum", scalar=counter.committed)
                update.name.context.update(context)
                self._metrics[job.id].append(update)


def _answer(message) -> Response:
    body = type(message).to_json(message, use_integers_for_enums=False).encode()
    return Response(200, body, {"Content-Type": "application/json; charset=UTF-8"})
