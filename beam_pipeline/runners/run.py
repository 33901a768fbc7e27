"""Runs a pipeline to its end, and turns its failures into errors that a user can read."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import uuid
from collections.abc import Callable, Iterator

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState

from beam_pipeline.dataset.lock_holder import Lock
from beam_pipeline.runners import beam_options, interruption, portable
from beam_pipeline.runners.dataflow import launch
from beam_pipeline.runners.worker_failures import WATCH
from beam_pipeline.support.errors import DataError, WorkerDied, user_message


def run(
    build: Callable[[beam.Pipeline], None],
    options: PipelineOptions,
    *,
    lock: Lock | None = None,
    wait: bool = True,
    describe_finished: Callable[[], str] | None = None,
) -> bool:
    """Builds and runs a pipeline, and waits until it ends.

    Args:
        build: Adds the pipeline's steps.
        options: Beam's options.
        lock: The lock of the folder that the pipeline writes. On Dataflow, the job is recorded in it.
        wait: Whether to wait for a job on Dataflow.
        describe_finished: Describes how much of the output is finished, for users who wait for a job.

    Returns:
        True if the pipeline is done, False if it was only submitted.

    Raises:
        DataError: If the pipeline failed with an error that a user can fix. The message is that of the failed step.
        StillRunning: If a job cannot be followed any more.
        RuntimeError: If the pipeline ended in another state than DONE.
    """
    if beam_options.runs_on_dataflow(options):
        return launch.run(build, options, lock=lock, wait=wait)
    uses_local_runner = beam_options.runs_here(options) or beam_options.starts_workers_here(options)
    worker_mark = uuid.uuid4().hex
    runner = _local_runner(options, worker_mark) if uses_local_runner else None
    pipeline = beam.Pipeline(runner=runner, options=options)
    build(pipeline)
    if portable.is_portable(pipeline):
        with _errors_reported_once():  # by workers in this process, with --environment_type LOOPBACK
            portable.run(pipeline, describe_finished=describe_finished)
        return True
    try:
        with _errors_reported_once():
            state = _run_to_end(pipeline, worker_mark)
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        raise DataError(message) from error
    if state != PipelineState.DONE:
        raise RuntimeError(f"the pipeline ended in the state {state}, not {PipelineState.DONE}")
    return True


def _run_to_end(pipeline: beam.Pipeline, worker_mark: str) -> str:
    """Runs a pipeline and returns its final state.

    The pipeline runs in a separate thread, because a worker process of a local run may die (of too little memory, for
    example). Beam's FnApiRunner watches each worker in a thread named run_worker, which raises if the process fails,
    but the run itself keeps waiting for the worker forever.

    Raises:
        WorkerDied: If a worker process died.
    """
    thread = interruption.PipelineThread(lambda: pipeline.run().wait_until_finish(), worker_mark=worker_mark)

    def report_death(error: BaseException) -> None:
        thread.fail(
            WorkerDied(
                f"a worker process died, perhaps of too little memory ({error}); --resume keeps what is finished"
            )
        )

    return thread.run(WATCH.handle(worker_mark, report_death))


@contextlib.contextmanager
def _errors_reported_once() -> Iterator[None]:
    """Keeps Beam from logging tracebacks of errors that a user can fix. `run` raises them, and the verb prints them."""

    def is_unreported(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else Exception(record.getMessage())
        return user_message(error) is None

    # In the launcher, the last one logs the messages of its worker processes.
    names = ("common", "worker.sdk_worker", "portability.local_job_service")
    loggers = [logging.getLogger(f"apache_beam.runners.{name}") for name in names]
    for logger in loggers:
        logger.addFilter(is_unreported)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_unreported)


def _local_runner(options: PipelineOptions, worker_mark: str) -> PipelineRunner:
    """Returns Beam's FnApiRunner, with worker processes that end with this process.

    The DirectRunner falls back to the FnApiRunner, but first tries to download another runner. The worker processes
    (`--direct_running_mode multi_processing`) get the pipeline's options only through the provision information, as in
    apache_beam/runners/direct/direct_runner.py.
    """
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_provision_api_pb2, beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.runners.portability.portable_runner import JobServiceHandle

    class Runner(fn_runner.FnApiRunner):
        def run_via_runner_api(
            self, pipeline_proto: beam_runner_api_pb2.Pipeline, options: PipelineOptions
        ) -> PipelineResult:
            command = [
                sys.executable,
                "-m",
                "beam_pipeline.support.worker_process",
                str(os.getpid()),
                worker_mark,
            ]
            for environment in pipeline_proto.components.environments.values():
                if environment.urn == python_urns.SUBPROCESS_SDK:
                    environment.payload = f"exec {shlex.join(command)}".encode()  # a shell runs it
            return super().run_via_runner_api(pipeline_proto, options)

    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    provision = fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    )
    return Runner(provision_info=provision)
