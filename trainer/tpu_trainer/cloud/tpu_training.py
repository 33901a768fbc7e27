"""Training on a TPU whose hosts report how they end, and after a preemption on a new one."""

from __future__ import annotations

import logging

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.exits import ContainerExit, describe, own_exits
from tpu_trainer.cloud.named_training import NamedTraining
from tpu_trainer.cloud.tpu_resource import TpuResource
from tpu_trainer.cloud.watch import Watch
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER
from tpu_trainer.support import files
from tpu_trainer.support.errors import CloudError, ExitStatus

_log = logging.getLogger(__name__)

_SILENT_SECONDS = 600
"""With --strategy pjrt, all hosts stop at about the same time. Host 0 may have to finish saving."""


class TpuTraining(NamedTraining):
    """Trains `config` on one TPU at a time."""

    _resource: TpuResource

    def __init__(self, config: LaunchConfig, resource: TpuResource, watch: Watch) -> None:
        super().__init__(config, resource, watch)
        self._preemptions = 0
        self._silent_seconds = 0.0  # since the first host stopped

    def _requested(self) -> str:
        return f"a {self._config.cloud.accelerator_type} in {self._config.cloud.zone}"

    def _inspect(self, found: dict) -> bool:
        """Returns whether the training is done; after a preemption, deletes the TPU, so that a new one is requested."""
        preempted, exits = self._look(found)
        if exits:
            if failure := self._failure(exits):
                self._fail(found, failure)
            self._delete(found)
        elif preempted:
            self._restart(found)
        return bool(exits)

    def _look(self, found: dict) -> tuple[bool, list[ContainerExit]]:
        """Returns whether the TPU was preempted, and the exits that ended the training, the cause first."""
        phase = self._watch.retry_until_answered(lambda: self._resource.phase(found))
        if phase.name == "waiting":
            self._watch.log_state(f"{self._name}: {phase.text}")
            return False, []
        if phase.name == "failed":
            self._fail(found, f"the request for a TPU failed: {phase.text}")
        if phase.name == "unknown":
            raise CloudError(
                f"{self._name}: the {self._resource.noun} is in an unknown state: {phase.text!r}; check it in the "
                "console"
            )
        preempted = phase.name == "preempted"
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

    def _restart(self, found: dict) -> None:
        self._preemptions += 1
        limit = self._config.cloud.max_preemptions
        if self._preemptions > limit:
            self._fail(
                found,
                f"the TPU was preempted {self._preemptions} times (--cloud.max_preemptions is {limit}); run the same "
                "command to continue",
            )
        _log.info(f"launch: {self._name}: the TPU was preempted; the run continues on a new one")
        self._delete(found)
        self._resource.new_attempt()
        self._seen, self._watch.created = False, None
        self._silent_seconds = 0.0

    def _failure(self, exits: list[ContainerExit]) -> str | None:
        """Returns why the training has failed; None if it is done."""
        cause = exits[0]
        if cause.host == 0 and cause.status == ExitStatus.DONE:
            return None
        folder = files.join(self._config.output_dir, LAUNCH_FOLDER)
        return describe(exits, others=f"their reports are in {folder}")
