"""Code shared by the services for monitoring a run: progress messages, waits and retries."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.lease import Lease, LostLeaseError
from tpu_trainer.cloud.signals import Signals
from tpu_trainer.support import files
from tpu_trainer.support.errors import CloudError

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

CHECKS_OF_UNANSWERED = 3
"""How often to check, after a signal, whether an unanswered request was executed."""


class Watch:
    """Monitors one run."""

    def __init__(self, api: Api, config: LaunchConfig, lease: Lease, sleep: Callable[[float], Any]) -> None:
        self._api = api
        self._lease = lease
        self._sleep = sleep
        self._name = config.name
        self._seconds = config.cloud.poll_seconds
        self._metrics = files.join(config.output_dir, "metrics.jsonl")
        self._logged: dict[str, str] = {}
        self.cleanup_command: str | None = None
        """The command that deletes resources that may exist and be billed; None: there are none."""
        self.unanswered = False
        """Whether the last request for a resource had no response: it may still be executed."""
        self.created: Any = None
        """The answer to the last request that has created a resource; None: there was none."""
        self.signals = Signals(exit_message=self.cleanup_hint)
        """In this context, signals interrupt."""

    def cleanup_hint(self) -> str:
        """Says which resources may remain on Google Cloud, and how to delete them."""
        if self.cleanup_command is None:
            return "no resources remain on Google Cloud"
        return (
            "resources may remain on Google Cloud and be billed; run the same command to monitor them again, or delete "
            f"them with: {self.cleanup_command}"
        )

    def request(
        self,
        create: Callable[[], _Answer],
        *,
        cancel: Callable[[], None],
        what: str,
        if_killed: str,
        cleanup_command: str,
    ) -> _Answer | None:
        """Requests a resource and returns the answer; None if there is no response. A signal waits for the response.

        Args:
            create: Sends the request. Its answer is false if it has created nothing.
            cancel: Deletes what may exist if the request is refused.
            what: What is requested, for the log of the first request.
            if_killed: What to do if this command is killed, in words before `cleanup_command`.
            cleanup_command: Deletes what may exist from now on.

        Raises:
            CloudError: The request is refused. An earlier one without response may still be executed.
        """
        if self.cleanup_command is None:
            _log.info(
                f"launch: {self._name}: requesting {what}; if this command is killed, {if_killed}: {cleanup_command}"
            )
        self.cleanup_command = cleanup_command
        before, self.unanswered = self.unanswered, True
        try:
            with self.signals.deferred():
                answer = create()
                self.unanswered = False
                # Here, since a signal that came meanwhile interrupts before the caller goes on.
                self.created = answer or self.created
            return answer
        except UnansweredError as error:
            self.log_state(f"{self._name}: checking whether the request was executed: {error}")
            return None
        except LostLeaseError:  # another launch goes on with what exists
            raise
        except CloudError:
            self.unanswered = before
            self.clean_up(cancel)
            raise

    def clean_up(self, delete: Callable[[], None]) -> None:
        """Deletes resources after an error, which a failure to delete them does not hide."""
        try:
            delete()
        except LostLeaseError:
            raise
        except CloudError as failure:
            _log.info(f"launch: {failure}")

    def wait(self, *, at_least: float = 0) -> None:
        """Waits until the next status check, at least `at_least` seconds, and renews the lease."""
        self._sleep(max(self._seconds, at_least))
        self._lease.renew()

    def pause(self, seconds: float) -> None:
        """Waits less than a status check, and renews the lease: many pauses may follow each other."""
        self._sleep(seconds)
        self._lease.renew()

    def retry_until_answered(self, call: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `call`, which is retried without limit until Google Cloud responds.

        Giving up would leave a TPU that is billed and not monitored.
        """
        while True:
            try:
                return call()
            except UnansweredError as error:
                self.log_state(f"retrying: {error}")
                self.wait(at_least=1)

    def log_state(self, text: str) -> None:
        """Prints the resource's state if it has changed."""
        self._log_if_changed("state", text)

    def log_progress(self) -> None:
        """Prints the step and loss in the last complete line of metrics.jsonl if they have changed."""
        text = self.retry_until_answered(lambda: self._api.read_object(self._metrics, last_bytes=4096)) or ""
        lines = text.split("\n")[:-1]
        if lines and lines[-1].startswith("{"):
            try:
                text = _progress(lines[-1])
            except (ValueError, TypeError, KeyError, AttributeError):
                # A damaged log is no reason to leave a TPU unwatched.
                text = f"{self._metrics}: the last line is not a record of `fit`: {lines[-1][:80]!r}"
            if text:
                self._log_if_changed("progress", text)

    def _log_if_changed(self, topic: str, text: str) -> None:
        if self._logged.get(topic) != text:
            _log.info(f"launch: {text}")
            self._logged[topic] = text


def _progress(line: str) -> str:
    """Returns the step and loss in a line of metrics.jsonl; nothing if it has none."""
    record = json.loads(line)
    figures = record.get("eval", record)
    kind = "validation loss" if "eval" in record else "loss"
    return f"step {record['step']}: {kind} {figures['loss']:.3f}" if "loss" in figures else ""
