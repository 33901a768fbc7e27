"""A training on a queued resource, and on the next ones if that is taken away."""

from __future__ import annotations

import secrets
import signal

from tpu_trainer import files
from tpu_trainer.cloud.api import Api, UnansweredError
from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.queued_resource import (
    NODE_TAKEN_AWAY,
    TAKEN_AWAY,
    WAITING,
    Ending,
    QueuedResource,
    state_of,
)
from tpu_trainer.cloud.watch import Watch, say
from tpu_trainer.errors import CloudError, ExitStatus
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER

_STOPPED = (ExitStatus.INTERRUPTED, 128 + signal.SIGTERM)
"""Exit statuses of a container that was told to stop, as is done before its machine is taken away."""
_LOST_HOST = (ExitStatus.INTERRUPTED, ExitStatus.CLOUD)
"""Exit statuses of `fit` if another host of the TPU is lost or missing: that host's report has the reason."""
_MOST_LOGS = 3
_MOST_CONFLICTS = 10
_LOOKS = 3
"""After a signal, whether a request without an answer was carried out."""


class TpuTraining:
    """The training of `config` on queued resources, one after another."""

    def __init__(self, config: LaunchConfig, api: Api, watch: Watch) -> None:
        self._config = config
        self._resource = QueuedResource(api, config)
        self._watch = watch
        self._name = config.name
        self._attempt = secrets.token_hex(4)
        self._conflicts = 0
        self._seen = False  # since it was last asked for
        self._created = False  # by a request that was answered
        self._unanswered = False  # the last request for it

    def run(self) -> None:
        """Trains to the end; CloudError if that does not succeed."""
        preemptions = 0
        while True:
            found = self._watch.patiently(self._resource.get)
            if found is None:
                self._ask()
            elif state_of(found) == "DELETING":
                self._seen = self._seen or self._created
                self._watch.state(f"{self._name}: DELETING")
            else:
                self._recognize(found)
                taken, endings = self._look(found)
                if endings:
                    self._give_back()
                    return self._check(endings)
                if taken:
                    preemptions += 1
                    self._start_again(preemptions)
                    continue
            self._watch.wait()

    def give_back_at_once(self) -> None:
        """Has the queued resource deleted, if it may be there, and returns when that is under way."""
        if self._watch.left is None:
            return
        for _ in range(_LOOKS if self._unanswered else 1):
            self._watch.patiently(self._resource.delete)
            if self._watch.patiently(self._resource.get) is not None:
                self._unanswered = False
            self._watch.wait(at_least=1)
        # A request without an answer may still be carried out.
        if not self._unanswered:
            self._watch.left = None

    def _give_back(self) -> None:
        """Deletes the queued resource, and returns when it is gone: a new one of its name can be asked for."""
        self._watch.patiently(self._resource.delete)
        while (found := self._watch.patiently(self._resource.get)) is not None:
            if state_of(found) != "DELETING":
                self._watch.patiently(self._resource.delete)
            self._watch.wait()
        self._watch.left = None

    def _ask(self) -> None:
        """Asks for one. Whether that was carried out, the next look shows, also if there was no answer."""
        if self._seen:
            self._watch.left = None
            raise CloudError(
                f"{self._name}: the queued resource was deleted, and not by this command; the same command continues "
                "the run"
            )
        if self._watch.left is None:
            cloud = self._config.cloud
            say(
                f"{self._name}: asks for a {cloud.accelerator_type} in {cloud.zone}; should this command be killed, "
                f"give it back: {self._resource.delete_command}"
            )
        self._watch.left = self._resource.delete_command
        before, self._unanswered = self._unanswered, True
        try:
            with self._watch.signals.held():
                created = self._resource.create(self._attempt)
                self._unanswered = False
        except UnansweredError as error:
            self._watch.state(f"{self._name}: looks whether it was asked for: {error}")
            return
        except CloudError:
            self._unanswered = before
            if not before:
                self._watch.left = None
            raise
        self._created = self._created or created
        self._conflicts = 0 if created else self._conflicts + 1
        if self._conflicts > _MOST_CONFLICTS:
            raise CloudError(
                f"{self._name}: Google Cloud says both that it exists and that it does not exist"
            )

    def _recognize(self, found: dict) -> None:
        if not self._resource.is_of_run(found):
            self._watch.left = None
            raise CloudError(
                f"{self._name}: a queued resource of this name is there already, and not for "
                f"{self._config.output_dir}; choose another --cloud.name"
            )
        self._watch.left = self._resource.delete_command
        self._seen, self._unanswered = True, False

    def _look(self, found: dict) -> tuple[bool, list[Ending]]:
        """Whether the TPU was taken away, and how the training has ended by itself, the cause first."""
        state = state_of(found)
        if state in WAITING:
            self._watch.state(f"{self._name}: {state}")
            return False, []
        if state == "FAILED":
            why = found["state"].get("failedData", {}).get("error", {}).get("message", "no reason given")
            self._give_back()
            raise CloudError(f"{self._name}: the request for a TPU failed: {why}")
        if state not in (*TAKEN_AWAY, "ACTIVE"):
            raise CloudError(
                f"{self._name}: the queued resource is in a state unknown to this program: {state!r}"
            )
        node_state = self._watch.patiently(self._resource.node_state)
        taken = state in TAKEN_AWAY or node_state in NODE_TAKEN_AWAY
        endings = self._watch.patiently(lambda: self._resource.endings(found))
        # A container that does not stop in time is killed, as is one that takes too much memory. A slice that loses a
        # host before it has started ends as one whose hosts do not answer.
        stopped = (*_STOPPED, 128 + signal.SIGKILL, ExitStatus.CLOUD) if taken else _STOPPED
        if ended := _by_itself(endings, stopped):
            return taken, ended
        # If another host stops first, the first one still reports.
        if taken or any(ending.host == 0 for ending in endings):
            return True, []
        self._watch.state(f"{self._name}: the TPU is there")
        self._watch.training()
        return False, []

    def _start_again(self, preemptions: int) -> None:
        if preemptions <= self._config.cloud.max_preemptions:
            say(f"{self._name}: the TPU was taken away; the run continues on a new one")
        self._give_back()
        if preemptions > self._config.cloud.max_preemptions:
            raise CloudError(
                f"{self._name}: the TPU was taken away {preemptions} times (--cloud.max_preemptions); the same command "
                "continues the run"
            )
        self._attempt, self._seen, self._created = secrets.token_hex(4), False, False

    def _check(self, endings: list[Ending]) -> None:
        cause = endings[0]
        if cause.host == 0 and cause.status == ExitStatus.DONE:
            return
        lines = [_describe(ending) for ending in endings[:_MOST_LOGS]]
        if more := ", ".join(str(ending.host) for ending in endings[_MOST_LOGS:]):
            lines.append(
                f"More hosts failed: {more}; their reports are in {files.join(self._config.output_dir, LAUNCH_FOLDER)}"
            )
        raise CloudError(f"{self._name}: " + "\n".join(lines))


def _by_itself(endings: list[Ending], stopped: tuple[int, ...]) -> list[Ending]:
    """The endings that decide how the training ended, the cause first; none if it goes on or was stopped from outside.

    Args:
        endings: Of all hosts that have reported.
        stopped: The exit statuses of containers that were stopped from outside.
    """
    if any(ending.host == 0 and ending.status == ExitStatus.DONE for ending in endings):
        return [ending for ending in endings if ending.host == 0]
    failed = [ending for ending in endings if ending.status not in stopped]
    return sorted(failed, key=lambda ending: ending.host == 0 and ending.status in _LOST_HOST)


def _describe(ending: Ending) -> str:
    who = "`fit`" if ending.host == 0 else f"host {ending.host} of the TPU"
    return (
        f"{who} ended with status {ending.status} (docs/training.md says what that means). The last of what it "
        f"printed:\n{ending.log}"
    )
