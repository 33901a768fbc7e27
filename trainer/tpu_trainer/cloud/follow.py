"""Follows a run on Google Cloud from the request for a TPU to its deletion, whatever the service."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.google import UnansweredError
from tpu_trainer.cloud.lease import Lease, LostLeaseError
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import Resource, Service
from tpu_trainer.cloud.signals import InterruptedBySignal, Signals
from tpu_trainer.support import files
from tpu_trainer.support.errors import CloudError

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_CHECKS_OF_UNANSWERED = 3
"""How often to check, after a signal, whether an unanswered request was executed."""
_MAX_CONFLICTS = 10
_PART_SECONDS = 2.0
"""Seconds between two status checks of a resource that is created or deleted in parts."""


class RunFollower:
    """Trains one run: requests a TPU, monitors it, requests a new one after a preemption, and deletes it."""

    def __init__(
        self,
        config: LaunchConfig,
        service: Service,
        objects: Objects,
        lease: Lease,
        *,
        sleep: Callable[[float], Any],
    ) -> None:
        """
        Args:
            config: The run.
            service: Where it trains.
            objects: Has the run's folder.
            lease: The lease on the run's folder.
            sleep: Waits a number of seconds.
        """
        self._config = config
        self._service = service
        self._objects = objects
        self._lease = lease
        self._sleep = sleep
        self._name = config.name
        self._logged: dict[str, str] = {}
        self._may_exist = False  # whether resources may exist and be billed
        self._unanswered = False  # whether the last request had no response: it may still be executed
        self._created = False  # whether the last request has created a resource that has not been visible yet
        self._has_existed = False  # whether the resource has existed since the last request
        self._conflicts = 0
        self._preemptions = 0
        self._signals = Signals(exit_message=self._cleanup_hint)

    def follow(self) -> None:
        """Trains to the end while holding the lease; at the end, prints how to delete resources that may remain.

        Raises:
            CloudError: If training fails, or a request is refused.
            InterruptedBySignal: After a signal. The run's resources are being deleted.
        """
        with self._signals:
            try:
                self._lease.acquire()
                self._ask(self._service.refuse)
                self._train()
            except InterruptedBySignal as interruption:
                _log.info(f"launch: {self._name}: {interruption}: deleting its resources")
                self._cancel()
                raise
            except LostLeaseError:  # another launch goes on with what exists
                self._may_exist = False
                raise
            finally:
                if self._may_exist:
                    _log.info(f"launch: {self._name}: {self._cleanup_hint()}")
                else:
                    self._lease.release()

    def _cleanup_hint(self) -> str:
        """Says which resources may remain on Google Cloud, and how to delete them."""
        if not self._may_exist:
            return "no resources remain on Google Cloud"
        return (
            "resources may remain on Google Cloud and be billed; run the same command to monitor them again, or delete "
            f"them with: {self._service.delete_command}"
        )

    def _train(self) -> None:
        while True:
            resource = self._ask(self._service.find)
            part = False  # whether the next one can be requested soon
            if resource is None:
                part = self._request() and self._service.in_parts
            elif resource.deleting:
                self._has_existed, self._created = self._has_existed or self._created, False
                self._log_state(f"a {self._service.noun} of this name is being deleted")
            else:
                self._check_owner(resource)
                if not resource.complete:
                    part = resource.creating or self._request()
                elif self._inspect(resource):
                    return
            self._wait(at_most=_PART_SECONDS if part else None)

    def _check_owner(self, resource: Resource) -> None:
        if resource.conflict is not None:
            self._may_exist = False
            raise CloudError(
                f"{self._name}: a {self._service.noun} of this name exists, but {resource.conflict}"
            )
        self._may_exist, self._created = True, False
        if resource.complete:
            self._has_existed, self._unanswered = True, False

    def _inspect(self, resource: Resource) -> bool:
        """Returns whether the training is done; after a preemption, deletes the TPU, so that a new one is requested."""
        state = self._ask(self._service.state)
        if state.name == "done":
            self._delete(resource)
            return True
        if state.name == "failed":
            self._fail(resource, state.text)
        if state.name == "unknown":
            raise CloudError(
                f"{self._name}: the {self._service.noun} is in an unknown state: {state.text!r}; check it in the "
                "console"
            )
        if state.name == "preempted":
            self._restart(resource)
            return False
        self._log_state(state.text)
        if state.name == "active":
            self._log_progress()
        return False

    def _restart(self, resource: Resource) -> None:
        self._preemptions += 1
        limit = self._config.cloud.max_preemptions
        if self._preemptions > limit:
            self._fail(
                resource,
                f"the TPU was preempted {self._preemptions} times (--cloud.max_preemptions is {limit}); run the same "
                "command to continue",
            )
        _log.info(f"launch: {self._name}: the TPU was preempted; the run continues on a new one")
        self._delete(resource)
        self._service.new_attempt()
        self._has_existed = False

    def _request(self) -> bool:
        """Requests what is missing, while signals wait for the response. Returns whether there was one.

        The next status check shows whether the request was executed.
        """
        service = self._service
        if self._has_existed or (self._created and service.visible_at_once):
            self._has_existed = True
            self._clean_up(self._cancel)
            raise CloudError(
                f"{self._name}: the {service.noun} was deleted, but not by this command; run the same command to "
                "continue"
            )
        if not self._may_exist:
            _log.info(
                f"launch: {self._name}: requesting {service.requested}; if this command is killed, "
                f"{service.if_killed}: {service.delete_command}"
            )
        self._may_exist = True
        was_unanswered, self._unanswered = self._unanswered, True
        try:
            with self._signals.deferred():
                created = service.request()
                self._unanswered = False
                # Here, since a signal that came meanwhile interrupts before the next line.
                self._created = created or self._created
        except UnansweredError as error:
            self._log_state(f"checking whether the request was executed: {error}")
            return False
        except CloudError:
            self._unanswered = was_unanswered  # an earlier request may still be executed
            self._clean_up(self._cancel)
            raise
        self._conflicts = 0 if created else self._conflicts + 1
        if self._conflicts > _MAX_CONFLICTS:
            raise CloudError(
                f"{self._name}: Google Cloud reports that the {service.noun} is missing, but refuses to create it "
                "because it exists; choose another --cloud.name"
            )
        return True

    def _cancel(self) -> None:
        """Starts to delete the run's resource if it may exist."""
        if not self._may_exist:
            return
        # A request without an answer may still be executed, and one with an answer may not be visible yet.
        uncertain = self._unanswered or self._created
        for _ in range(_CHECKS_OF_UNANSWERED if uncertain else 1):
            resource = self._ask(self._service.find)
            if resource is not None and resource.conflict is None:
                uncertain = False
                if self._service.in_parts:
                    return self._delete(resource)
                if not resource.deleting:
                    self._ask(self._service.delete)
            self._wait(at_least=1)
        self._may_exist = uncertain

    def _fail(self, resource: Resource, reason: str) -> NoReturn:
        """Deletes a resource and raises CloudError with the reason, also if Google Cloud refuses to delete it."""
        self._clean_up(lambda: self._delete(resource))
        raise CloudError(f"{self._name}: {reason}")

    def _clean_up(self, delete: Callable[[], None]) -> None:
        """Deletes resources after an error, which a failure to delete them does not mask."""
        try:
            delete()
        except LostLeaseError:
            raise
        except CloudError as failure:
            _log.info(f"launch: {failure}")

    def _delete(self, resource: Resource) -> None:
        """Deletes a resource and waits until its name is free for a new one."""
        remaining: Resource | None = resource
        while remaining is not None and remaining.identity == resource.identity:
            if not remaining.deleting:
                self._ask(self._service.delete)
            remaining = self._ask(self._service.find)
            if remaining is not None:
                self._wait(at_most=_PART_SECONDS if self._service.in_parts else None)
        self._may_exist = False

    def _ask(self, call: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `call`, which is retried without limit until Google Cloud responds.

        Giving up would leave a TPU that is billed and not monitored.
        """
        while True:
            try:
                return call()
            except UnansweredError as error:
                self._log_state(f"retrying: {error}")
                self._wait(at_least=1)

    def _wait(self, *, at_least: float = 0, at_most: float | None = None) -> None:
        """Waits until the next status check, and renews the lease."""
        seconds = max(self._config.cloud.poll_seconds, at_least)
        self._sleep(seconds if at_most is None else min(seconds, at_most))
        self._lease.renew()

    def _log_state(self, text: str) -> None:
        self._log_if_changed("state", f"{self._name}: {text}")

    def _log_progress(self) -> None:
        """Prints the step and loss in the last complete line of metrics.jsonl if they have changed."""
        url = files.join(self._config.output_dir, "metrics.jsonl")
        lines = (self._ask(lambda: self._objects.read(url, last_bytes=4096)) or "").split("\n")[:-1]
        if lines and lines[-1].startswith("{"):
            try:
                text = _progress(lines[-1])
            except (ValueError, TypeError, KeyError, AttributeError):
                # A damaged log is no reason to leave a TPU unwatched.
                text = f"{url}: the last line is not a record of `fit`: {lines[-1][:80]!r}"
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
