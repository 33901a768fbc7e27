"""What the exits of a TPU's hosts say: whether the training has ended, and which host was the cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tpu_trainer.support.errors import ExitStatus

SIGTERMED = 128 + signal.SIGTERM
SIGKILLED = 128 + signal.SIGKILL
ABORTED = 128 + signal.SIGABRT
"""Of a process of --strategy pjrt that has lost process 0."""
_LOST_HOST = (ExitStatus.INTERRUPTED, ExitStatus.CLOUD)
"""Exit statuses of `fit` if another host of the TPU fails. The cause is in that host's report."""
MAX_LOGS = 3
"""Exits whose output a message has."""


@dataclass(frozen=True)
class ContainerExit:
    """How a host's container exited."""

    host: int
    """The host's number."""
    status: int
    """The exit status."""
    log: str
    """The last lines of output."""


def own_exits(exits: list[ContainerExit], *, preempted: bool, pjrt: bool) -> list[ContainerExit]:
    """Returns the exits that ended the training, the cause first; none if it continues or was stopped externally.

    Args:
        exits: Exits of all hosts that have reported.
        preempted: Whether the TPU is being taken away.
        pjrt: Whether every host runs `fit`.
    """
    if any(container.host == 0 and container.status == ExitStatus.DONE for container in exits):
        return [container for container in exits if container.host == 0]
    # A container that got SIGTERM, as it does before a preemption.
    stopped = {ExitStatus.INTERRUPTED, SIGTERMED}
    if preempted:
        # SIGKILL ends a container that stops too slowly, and one that uses too much memory. `fit` ends with CLOUD if
        # the slice loses a host during startup.
        stopped |= {SIGKILLED, ExitStatus.CLOUD}
    failed = [
        container
        for container in exits
        if container.status not in stopped
        and not (pjrt and container.host > 0 and container.status in (ABORTED, ExitStatus.DONE))
    ]
    return sorted(failed, key=lambda container: container.host == 0 and container.status in _LOST_HOST)


def describe(exits: list[ContainerExit], *, others: str) -> str:
    """Returns a message about the exits that ended the training, the cause first.

    Args:
        exits: At least one exit.
        others: Where the output of hosts is that the message has no room for.
    """
    lines = [_describe(container) for container in exits[:MAX_LOGS]]
    if more := ", ".join(str(container.host) for container in exits[MAX_LOGS:]):
        lines.append(f"Other hosts that failed: {more}; {others}")
    return "\n".join(lines)


def _describe(container: ContainerExit) -> str:
    who = "`fit`" if container.host == 0 else f"host {container.host} of the TPU"
    return f"{who} exited with status {container.status} (see docs/training.md). Its last output:\n{container.log}"
