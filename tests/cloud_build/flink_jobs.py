"""Jobs of the stand-in for Dataflow, executed on Flink, with workers in the image that the job names."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc, beam_runner_api_pb2
from apache_beam.runners.portability.portable_runner import TERMINAL_STATES, JobServiceHandle, PipelineResult
from apache_beam.runners.runner import PipelineState
from google.cloud import dataflow_v1beta3 as api

from tests.engines.clusters import Flink
from tests.engines.servers import is_listening, wait_for
from tests.google_cloud.dataflow import Dataflow

POOL_PORT = 50_000
"""The port of a worker pool in the pipeline's image."""
_PARALLELISM = 2
_POLL_SECONDS = 0.2
_ENDED = {PipelineResult.runner_api_state_to_pipeline_state(state) for state in TERMINAL_STATES}


class ImagePool:
    """The workers of a cluster: a pool in a container of the pipeline's image."""

    def options(self, job_port: int) -> list[str]:
        """Returns Beam's options for a job service on this port, whose workers the pool starts."""
        return [
            *("--runner", "PortableRunner", "--job_endpoint", f"127.0.0.1:{job_port}"),
            *("--environment_type", "EXTERNAL", "--environment_config", f"127.0.0.1:{POOL_PORT}"),
            *("--sdk_worker_parallelism", "1"),
        ]


class FlinkJobs:
    """Executes jobs, one at a time.

    Args:
        flink: The cluster. Its pool is an `ImagePool`.
        docker: Runs a command of the sandbox's docker.
    """

    def __init__(self, flink: Flink, docker: Callable[..., subprocess.CompletedProcess[str]]):
        self._flink, self._docker = flink, docker
        self._one = threading.Lock()

    def __call__(self, dataflow: Dataflow, job: api.Job) -> None:
        """Executes a job until it ends or is cancelled.

        Raises:
            RuntimeError: If it fails, with the last error.
        """
        [pool] = job.environment.worker_pools
        [container] = pool.sdk_harness_container_images
        pipeline = dataflow.staged_pipeline(job)
        for environment in pipeline.components.environments.values():
            _use_pool(environment, container.container_image)
        cancelled = dataflow.cancelled[job.id]
        with self._one:
            name = f"workers-{job.id.rpartition('-')[2]}"
            run = ("run", "--detach", "--network", "host", "--name", name, container.container_image)
            self._docker(*run, "--worker_pool").check_returncode()
            try:
                wait_for(
                    f"{name} on port {POOL_PORT}",
                    lambda: is_listening(POOL_PORT) or cancelled.is_set() or None,
                    self._check(name),
                )
                if not cancelled.is_set():
                    self._execute(dataflow, job, pipeline)
            finally:
                self._docker("rm", "--force", name).check_returncode()

    def _check(self, name: str) -> Callable[[], None]:
        """Returns a function that raises an AssertionError with a container's output once it has ended."""

        def check() -> None:
            if name not in json.loads(self._docker("ps").stdout):
                raise AssertionError(f"{name} has ended: {self._docker('logs', '--tail', '30', name).stdout}")

        return check

    def _execute(self, dataflow: Dataflow, job: api.Job, pipeline: beam_runner_api_pb2.Pipeline) -> None:
        options = PipelineOptions(self._flink.options(_PARALLELISM), environment_cache_millis=10_000)
        with grpc.insecure_channel(options.view_as(PortableOptions).job_endpoint) as channel:
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            handle = JobServiceHandle(service, options, retain_unknown_options=True)
            result = PipelineResult(service, *handle.submit(pipeline))
            errors: list[str] = []
            reader = threading.Thread(target=lambda: errors.extend(_errors(result)), daemon=True)
            reader.start()
            while (state := result.state) not in _ENDED:
                if dataflow.cancelled[job.id].is_set():
                    self._flink.end_jobs()  # the job service would let the job run on
                time.sleep(_POLL_SECONDS)
            reader.join()
            if state == PipelineState.DONE:
                dataflow.count(job, result.metrics().query()["counters"])
            elif not dataflow.cancelled[job.id].is_set():
                raise RuntimeError(errors[-1] if errors else state)


def _use_pool(environment: beam_runner_api_pb2.Environment, image: str) -> None:
    """Replaces an environment, a container of the image, by the pool in such a container."""
    assert beam_runner_api_pb2.DockerPayload.FromString(environment.payload).container_image == image
    pool = beam_runner_api_pb2.ExternalPayload()
    pool.endpoint.url = f"127.0.0.1:{POOL_PORT}"
    environment.urn, environment.payload = "beam:env:external:v1", pool.SerializeToString()
    # Staged in the bucket: the launcher's list of packages, for the log.
    del environment.dependencies[:]


def _errors(result: PipelineResult) -> Iterator[str]:
    for message in result._message_stream:
        response = message.message_response
        if response.importance == beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR:
            yield response.message_text
