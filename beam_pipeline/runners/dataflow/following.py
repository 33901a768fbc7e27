"""Following a Dataflow job until it ends: its state, messages and counters; and cancelling it."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING

from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, StillRunning, last_error, quoted_message
from beam_pipeline.support.progress import NAMESPACES, describe_counters

if TYPE_CHECKING:
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient

_POLL_SECONDS = 10.0
# A job's last messages arrive late: after a failure, poll this many more times for the reason.
_POLLS_FOR_REASON = 6
ENDED = ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")
_SHOWN_IMPORTANCES = ("BASIC", "WARNING", "ERROR")  # not DEBUG and DETAILED
# Dataflow also reports the statistics of distributions as counters.
_DISTRIBUTION_SUFFIXES = ("_MIN", "_MAX", "_MEAN", "_COUNT")
_LAUNCHER_LOG = re.compile(r"[Cc]onsole log from launcher will be available at (gs://\S+?)\.?(?:\s|$)")
_LINES_OF_LAUNCHER_LOG = 40

_log = logging.getLogger(__name__)


class CancelRequest:
    """A user's request to cancel the job: the first SIGINT or SIGTERM while `watched`."""

    def __init__(self) -> None:
        self.requested = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[CancelRequest]:
        """Handles both signals. After the first one, restores the previous handlers."""
        if threading.current_thread() is not threading.main_thread():  # Python handles signals only there
            yield self
            return
        previous_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)

        def request(number: int, frame: FrameType | None) -> None:
            restore()
            self.requested.set()

        for number in previous_handlers:
            signal.signal(number, request)
        try:
            yield self
        finally:
            restore()


class DataflowJobFollower:
    """Follows a job and logs its state, messages and counters."""

    def __init__(self, client: DataflowApplicationClient, job_id: str, *, cancel: CancelRequest):
        self._client = client
        self._id = job_id
        self._cancel = cancel
        self._state = ""
        self._shown_messages: set[tuple[str, str]] = set()
        self._last_message_time: datetime | None = None
        self._errors: list[str] = []
        self._launcher_log = ""
        self._counters = ""

    def follow(self) -> None:
        """Follows the job until it is done.

        Raises:
            DataError: If it failed or was cancelled. The message gives the reason.
            StillRunning: If it cannot be polled any more, so its state is unknown.
        """
        cancelled, polls_left = False, _POLLS_FOR_REASON
        while True:
            if self._cancel.requested.is_set() and not cancelled:
                _log.info("Dataflow: cancelling the job, as requested")
                self._try(lambda: self._client.modify_job_state(self._id, "JOB_STATE_CANCELLED"))
                cancelled = True
            state = self._poll()
            if state in ENDED and (state != "FAILED" or self._errors or not polls_left):
                break
            polls_left -= state == "FAILED"
            if cancelled:
                self._cancel.requested.clear()  # or the wait below would return at once
            self._cancel.requested.wait(_POLL_SECONDS)
        if state == "DONE":
            return
        if state == "CANCELLED":
            raise DataError(f"the Dataflow job {self._id} was cancelled ({self.url})")
        raise DataError(f"the Dataflow job {self._id} ended as {state}: {self._reason()} ({self.url})")

    @property
    def url(self) -> str:
        """The job's page in the console."""
        cloud = self._client.google_cloud_options
        return f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{self._id}?project={cloud.project}"

    def _try(self, call):
        """Returns what the call returns. Does not retry, because Beam's client already does.

        Raises:
            StillRunning: If the call fails.
        """
        try:
            return call()
        except Exception as error:
            raise StillRunning(
                f"the Dataflow job {self._id} cannot be reached any more ({error}); it may still run: see {self.url}"
            ) from error

    def _poll(self) -> str:
        """Prints new messages and counters, and returns the job's state."""
        job = self._try(lambda: self._client.get_job(self._id))
        state = job.current_state.name.removeprefix("JOB_STATE_")
        if state != self._state:
            self._state = state
            _log.info("Dataflow: %s", state.lower().replace("_", " "))
        self._print_messages()
        self._log_counters()
        return state

    def _print_messages(self) -> None:
        token, start_time = None, self._last_message_time
        while True:
            messages, token = self._try(
                lambda token=token: self._client.list_messages(
                    self._id, start_time=start_time, page_token=token, minimum_importance="JOB_MESSAGE_BASIC"
                )
            )
            for message in messages:
                importance = message.message_importance.name.removeprefix("JOB_MESSAGE_")
                text = message.message_text
                key = (str(message.time), text)
                if importance not in _SHOWN_IMPORTANCES or key in self._shown_messages:
                    continue
                self._shown_messages.add(key)
                # Inclusive, because several messages can have the same time.
                self._last_message_time = message.time
                _log.info("Dataflow: %s", text if importance == "BASIC" else f"{importance}: {text}")
                match = _LAUNCHER_LOG.search(text)
                if match:
                    self._launcher_log = match[1]
                if importance == "ERROR":
                    self._errors.append(text)
            if not token:
                return

    def _log_counters(self) -> None:
        """Logs the counters of our own steps if they have changed."""
        sums: Counter[str] = Counter()
        for metric in self._try(lambda: self._client.get_job_metrics(self._id)).metrics:
            name, context = metric.name.name, metric.name.context
            is_own = metric.name.origin == "user" and context.get("namespace") in NAMESPACES
            if (
                is_own
                and "tentative" not in context
                and metric.scalar is not None
                and not name.endswith(_DISTRIBUTION_SUFFIXES)
            ):
                sums[name] += int(metric.scalar)
        counters = describe_counters(sums)
        if counters and counters != self._counters:
            self._counters = counters
            _log.info("Dataflow: %s", counters)

    def _reason(self) -> str:
        """Returns the reason why the job failed.

        If the launcher of a template failed, that is the end of its log. Otherwise it is this program's message if an
        error quotes one, the last traceback, or the last error.
        """
        if self._launcher_log:
            return f"{self._errors[-1] if self._errors else 'the launch failed'}\n{self._read_launcher_log()}"
        reason = quoted_message(self._errors) or last_error(self._errors)
        return reason or "Dataflow reports no reason; see the job's logs"

    def _read_launcher_log(self) -> str:
        try:
            lines = filesystem.read_bytes(self._launcher_log).decode(errors="replace").splitlines()
        except Exception as error:
            return f"(the launcher's log, {self._launcher_log}, cannot be read: {error})"
        return "\n".join([f"The end of {self._launcher_log}:", *lines[-_LINES_OF_LAUNCHER_LOG:]])
