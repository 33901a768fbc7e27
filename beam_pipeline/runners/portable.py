"""Runs a pipeline on a runner behind Beam's job service (Flink, Spark, Prism), and follows its job."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability.portable_runner import (
    TERMINAL_STATES,
    PipelineResult,
    PortableMetrics,
    PortableRunner,
)
from apache_beam.runners.runner import PipelineState

from beam_pipeline.support.errors import DataError, StillRunning, last_error, quoted_message
from beam_pipeline.support.progress import NAMESPACES, describe_counters

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WITHOUT_SERVER = 30.0
_SECONDS_FOR_MESSAGES = 10.0
_SECONDS_TO_CANCEL = 30.0
# Flink runs a batch pipeline stage by stage. By default, Beam stops the Python workers at the end of each stage and
# starts new ones for the next, which takes seconds of imports. A worker that died stays in this cache, and each
# attempt to use it renews its entry, so Flink's restart delay must be longer.
_ENVIRONMENT_CACHE_MILLIS = 10_000

_ENDED = {PipelineResult.runner_api_state_to_pipeline_state(state) for state in TERMINAL_STATES}
# Beam's Flink runner reports that a job failed, even if someone cancelled it on the cluster.
_CANCELLED_ON_FLINK = "org.apache.flink.runtime.client.JobCancellationException"
_SHOWN_LEVELS = {
    beam_job_api_pb2.JobMessage.JOB_MESSAGE_WARNING: logging.WARNING,
    beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR: logging.ERROR,
}


def is_portable(pipeline: beam.Pipeline) -> bool:
    """Returns whether the pipeline's runner submits it to a job service."""
    return isinstance(pipeline.runner, PortableRunner)


def run(pipeline: beam.Pipeline, *, describe_finished: Callable[[], str] | None = None) -> None:
    """Runs a pipeline and waits until it is done. An interrupt cancels the job.

    Args:
        pipeline: Its runner is a `PortableRunner`.
        describe_finished: Describes how much of the output is finished. Beam's Flink runner counts only at the end of
            a job.

    Raises:
        DataError: If the job failed or was cancelled. The message gives the reason.
        StillRunning: If the job service cannot be reached any more, so the job's state is unknown.
    """
    options = pipeline.options.view_as(PortableOptions)
    options.environment_cache_millis = options.environment_cache_millis or _ENVIRONMENT_CACHE_MILLIS
    try:
        result = pipeline.run()
    except grpc.RpcError as error:
        raise DataError(f"the job service does not accept the job: {_describe(error)}") from error
    except grpc.FutureTimeoutError as error:
        raise DataError(f"--job_endpoint {options.job_endpoint}: no job service answers there") from error
    follower = PortableJobFollower(result, describe_finished=describe_finished)
    try:
        follower.follow()
    except KeyboardInterrupt:
        follower.cancel()
        raise
    finally:
        result._cleanup()  # stops Beam's own workers, with --environment_type LOOPBACK


class PortableJobFollower:
    """Follows a job and logs its state, messages, counters and progress.

    Args:
        result: The result of submitting the job.
        finished: Describes how much of the output is finished.
    """

    def __init__(self, result: PipelineResult, *, describe_finished: Callable[[], str] | None = None):
        self._result = result
        self._describe_finished = describe_finished
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read_messages, daemon=True)
        self._state = ""
        self._errors: list[str] = []
        self._progress = ""

    def follow(self) -> None:
        """Follows the job until it is done. See `run` for the exceptions."""
        self._reader.start()
        next_line_time = 0.0
        while (state := self._poll()) not in _ENDED:
            self._show_messages(state)
            if time.monotonic() >= next_line_time:
                self._show_progress()
                next_line_time = time.monotonic() + _SECONDS_BETWEEN_LINES
            time.sleep(_POLL_SECONDS)
        self._reader.join(_SECONDS_FOR_MESSAGES)
        self._show_messages(state)
        if state == PipelineState.DONE:
            self._show_counters()
        elif state == PipelineState.CANCELLED or any(_CANCELLED_ON_FLINK in error for error in self._errors):
            raise DataError("the job was cancelled")
        else:
            reason = last_error(self._errors) or "the job service reports no reason; see the runner's logs"
            raise DataError(quoted_message(self._errors) or f"the job ended as {state}: {reason}")

    def cancel(self) -> None:
        """Cancels the job, and waits a while until it has ended.

        Beam's job server for Flink (2.62 to 2.70) only marks the job as ended, and does not stop it on the cluster. But
        the job stops anyway as soon as it misses this run's lock.
        """
        _log.info("job: cancelling it, as requested")
        with contextlib.suppress(grpc.RpcError):
            self._result.cancel()
            deadline = time.monotonic() + _SECONDS_TO_CANCEL
            while self._result.state not in _ENDED and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

    def _read_messages(self) -> None:
        with contextlib.suppress(grpc.RpcError):  # `_poll` reports a lost connection
            for message in self._result._message_stream:
                if message.HasField("message_response"):
                    self._messages.put(message.message_response)

    def _poll(self) -> str:
        """Returns the job's state, and logs it if it has changed."""
        deadline = time.monotonic() + _SECONDS_WITHOUT_SERVER
        while True:
            try:
                state = self._result.state
                break
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                    continue
                raise StillRunning(
                    f"the job service does not know the job any more ({_describe(error)}). If the job still runs, it "
                    "stops at its next file, because this run ends. Run the same command with --resume to continue"
                ) from error
        if state != self._state:
            self._state = state
            _log.info("job: %s", state.lower())
        return state

    def _show_messages(self, state: str) -> None:
        """Logs new messages. The errors of a failed job are not logged, since `follow` raises their reason."""
        while not self._messages.empty():
            message = self._messages.get()
            is_error = message.importance == beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR
            if is_error:
                self._errors.append(message.message_text)
            level = _SHOWN_LEVELS.get(message.importance)
            if level is not None and not (is_error and state in _ENDED):
                text = quoted_message([message.message_text]) or message.message_text.strip()
                _log.log(level, "job: %s: %s", logging.getLevelName(level), text)

    def _show_progress(self) -> None:
        progress = self._describe_finished() if self._describe_finished else ""
        if progress and progress != self._progress:
            self._progress = progress
            _log.info("job: %s", progress)

    def _show_counters(self) -> None:
        try:
            counters = self._result.metrics().query()[PortableMetrics.COUNTERS]
        except grpc.RpcError as error:  # the job is done nevertheless
            _log.warning("job: no counters: %s", _describe(error))
            return
        sums: Counter[str] = Counter()
        for counter in counters:
            if counter.key.metric.namespace in NAMESPACES:
                sums[counter.key.metric.name] += counter.committed or counter.attempted or 0
        if sums:
            _log.info("job: %s", describe_counters(sums))


def _describe(error: grpc.RpcError) -> str:
    return f"{error.code().name}: {error.details()}"
