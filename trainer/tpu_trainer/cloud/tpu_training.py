"""Training on a queued resource, and after a preemption on a new one."""

from __future__ import annotations

import logging
import secrets

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import ContainerExit, describe, own_exits
from tpu_trainer.cloud.queued_resource import (
    PREEMPTED_NODE_STATES,
    PREEMPTED_STATES,
    WAITING_STATES,
    QueuedResource,
    state_of,
)
from tpu_trainer.cloud.watch import Watch
from tpu_trainer.errors import CloudError, ExitStatus
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

_log = logging.getLogger(__name__)

_MAX_CONFLICTS = 10
_SILENT_SECONDS = 600
"""With --strategy pjrt, all hosts stop at about the same time. Host 0 may have to finish saving."""
_CHECKS = 3
"""How often to check, after a signal, whether an unanswered request was executed."""


class TpuTraining:
    """Trains `config` on one queued resource at a time."""

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._config = config
        self._resource = QueuedResource(api, config)
        self._watch = watch
        self._name = config.name
        self._attempt = secrets.token_hex(4)
        self._conflicts = 0
        self._silent_seconds = 0.0  # since the first host stopped
        self._seen = False  # whether the resource has existed since the last request
        self._created = False  # whether a request was answered with success
        self._unanswered = False  # whether the last request had no response

    def run(self) -> None:
        """Trains to the end; raises CloudError if training fails."""
        preemptions = 0
        while True:
            found = self._watch.retry_until_answered(self._resource.get)
            if found is None:
                self._request()
            elif state_of(found) == "DELETING":
                self._seen = self._seen or self._created
                self._watch.log_state(f"{self._name}: DELETING")
            else:
                self._check_owner(found)
                preempted, exits = self._inspect(found)
                if exits:
                    self._delete()
                    return self._raise_if_failed(exits)
                if preempted:
                    preemptions += 1
                    self._restart(preemptions)
                    continue
            self._watch.wait()

    def cancel(self) -> None:
        """Starts to delete the queued resource if it may exist."""
        if self._watch.cleanup_command is None:
            return
        for _ in range(_CHECKS if self._unanswered else 1):
            self._watch.retry_until_answered(self._resource.delete)
            if self._watch.retry_until_answered(self._resource.get) is not None:
                self._unanswered = False
            self._watch.wait(at_least=1)
        # An unanswered request may still be executed.
        if not self._unanswered:
            self._watch.cleanup_command = None

    def _delete(self) -> None:
        """Deletes the queued resource and waits until its name is free for a new one."""
        self._watch.retry_until_answered(self._resource.delete)
        while (found := self._watch.retry_until_answered(self._resource.get)) is not None:
            if state_of(found) != "DELETING":
                self._watch.retry_until_answered(self._resource.delete)
            self._watch.wait()
        self._watch.cleanup_command = None

    def _request(self) -> None:
        """Requests a queued resource. The next status check shows whether it exists, even if there is no response."""
        if self._seen:
            self._watch.cleanup_command = None
            raise CloudError(
                f"{self._name}: the queued resource was deleted, but not by this command; run the same command to "
                "continue"
            )
        if self._watch.cleanup_command is None:
            cloud = self._config.cloud
            _log.info(
                f"launch: {self._name}: requesting a {cloud.accelerator_type} in {cloud.zone}; if this command is "
                f"killed, delete it with: {self._resource.delete_command}"
            )
        self._watch.cleanup_command = self._resource.delete_command
        before, self._unanswered = self._unanswered, True
        try:
            with self._watch.signals.deferred():
                created = self._resource.create(self._attempt)
                self._unanswered = False
        except UnansweredError as error:
            self._watch.log_state(f"{self._name}: checking whether the request was executed: {error}")
            return
        except CloudError:
            self._unanswered = before
            if not before:
                self._watch.cleanup_command = None
            raise
        self._created = self._created or created
        self._conflicts = 0 if created else self._conflicts + 1
        if self._conflicts > _MAX_CONFLICTS:
            raise CloudError(
                f"{self._name}: Google Cloud reports that the queued resource is missing, but refuses to create it "
                "because it exists; choose another --cloud.name"
            )

    def _check_owner(self, found: dict) -> None:
        if not self._resource.belongs_to_run(found):
            self._watch.cleanup_command = None
            raise CloudError(
                f"{self._name}: a queued resource of this name exists, but not for {self._config.output_dir}; choose "
                "another --cloud.name"
            )
        self._watch.cleanup_command = self._resource.delete_command
        self._seen, self._unanswered = True, False

    def _inspect(self, found: dict) -> tuple[bool, list[ContainerExit]]:
        """Returns whether the TPU was preempted, and the exits that ended the training, the cause first."""
        state = state_of(found)
        if state in WAITING_STATES:
            self._watch.log_state(f"{self._name}: {state}")
            return False, []
        if state == "FAILED":
            why = found["state"].get("failedData", {}).get("error", {}).get("message", "no reason given")
            self._delete()
            raise CloudError(f"{self._name}: the request for a TPU failed: {why}")
        if state not in (*PREEMPTED_STATES, "ACTIVE"):
            raise CloudError(
                f"{self._name}: the queued resource is in an unknown state: {state!r}; check it in the console"
            )
        node_state = self._watch.retry_until_answered(self._resource.node_state)
        preempted = state in PREEMPTED_STATES or node_state in PREEMPTED_NODE_STATES
        exits = self._watch.retry_until_answered(lambda: self._resource.exits(found))
        if ended := own_exits(exits, preempted=preempted, pjrt=self._config.trains_with_pjrt):
            return preempted, ended
        # If another host stops first, host 0 needs time to save and report.
        if preempted or any(container.host == 0 for container in exits) or self._lost_host_0(exits):
            return True, []
        self._watch.log_state(f"{self._name}: the TPU is active")
        self._watch.log_progress()
        return False, []

    def _lost_host_0(self, exits: list[ContainerExit]) -> bool:
        """Whether, with --strategy pjrt, the other hosts have stopped and host 0 does not report."""
        if not exits or not self._config.trains_with_pjrt:
            return False
        self._silent_seconds += max(self._config.cloud.poll_seconds, 1.0)
        return self._silent_seconds > _SILENT_SECONDS

    def _restart(self, preemptions: int) -> None:
        if preemptions <= self._config.cloud.max_preemptions:
            _log.info(f"launch: {self._name}: the TPU was preempted; the run continues on a new one")
        self._delete()
        if preemptions > self._config.cloud.max_preemptions:
            raise CloudError(
                f"{self._name}: the TPU was preempted {preemptions} times (--cloud.max_preemptions is "
                f"{self._config.cloud.max_preemptions}); run the same command to continue"
            )
        self._attempt, self._seen, self._created = secrets.token_hex(4), False, False
        self._silent_seconds = 0.0

    def _raise_if_failed(self, exits: list[ContainerExit]) -> None:
        cause = exits[0]
        if cause.host == 0 and cause.status == ExitStatus.DONE:
            return
        folder = files.join(self._config.output_dir, LAUNCH_FOLDER)
        raise CloudError(f"{self._name}: {describe(exits, others=f'their reports are in {folder}')}")
