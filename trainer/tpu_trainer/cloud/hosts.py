"""TPUs whose hosts start training at boot: the arguments in their metadata, and the reports that they write.

Each host runs `host_start.sh` at every boot, with arguments from its metadata. The script runs the container and
reports its exit in a file of the run folder. The file's name contains the attempt, which is different for each
requested TPU, and the host's number except for host 0.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tpu_trainer.cloud.config import LaunchConfig
from tpu_trainer.cloud.objects import Objects
from tpu_trainer.cloud.service import OPTIONS, State, recorded_options
from tpu_trainer.config.files import dump_fit_config
from tpu_trainer.runs.run_folder import LAUNCH_FOLDER
from tpu_trainer.support import files
from tpu_trainer.support.errors import ExitStatus

ATTEMPT = "tokenmill-attempt"
REPORT = "tokenmill-report"
_STARTUP_SCRIPT = Path(__file__).with_name("host_start.sh")
_SILENT_SECONDS = 600
"""All hosts stop at about the same time. Host 0 may have to finish saving."""
SIGTERMED = 128 + signal.SIGTERM
SIGKILLED = 128 + signal.SIGKILL
ABORTED = 128 + signal.SIGABRT
"""Exit status of a process of --strategy pjrt that has lost process 0."""
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


def host_metadata(config: LaunchConfig, attempt: str) -> dict[str, str]:
    """Returns the metadata with which each host of an attempt starts."""
    return {
        "startup-script": _STARTUP_SCRIPT.read_text(encoding="utf-8"),
        "tokenmill-image": config.cloud.image,
        "tokenmill-config": dump_fit_config(config.for_fit()),
        "tokenmill-name": config.name,
        "tokenmill-strategy": config.for_fit().strategy,
        OPTIONS: recorded_options(config),
        REPORT: _report_url(config, attempt),
        ATTEMPT: attempt,
    }


def _report_url(config: LaunchConfig, attempt: str) -> str:
    """Returns the URL of host 0's report: the exit status in the first line, then the end of the log.

    Host N writes `{attempt}-N.txt` in the same folder.
    """
    return files.join(config.output_dir, LAUNCH_FOLDER, f"{attempt}.txt")


class HostReports:
    """The reports of the hosts of a run."""

    def __init__(self, objects: Objects, config: LaunchConfig) -> None:
        self._objects = objects
        self._config = config
        self._silent_seconds = 0.0  # since a host stopped before host 0

    def state(self, attempt: str, *, preempted: bool) -> State:
        """Returns how far the training on an existing TPU is.

        Args:
            attempt: The TPU's.
            preempted: Whether Google Cloud takes the TPU away, or has done so.
        """
        exits = self.exits(attempt)
        if causes := causes_of(exits, preempted=preempted):
            if causes[0].host == 0 and causes[0].status == ExitStatus.DONE:
                return State("done")
            folder = files.join(self._config.output_dir, LAUNCH_FOLDER)
            return State("failed", describe(causes, other_logs=f"their reports are in {folder}"))
        # If another host stops first, host 0 needs time to save and report.
        if preempted or any(container.host == 0 for container in exits) or self._lost_host_0(exits):
            self._silent_seconds = 0.0
            return State("preempted")
        return State("active", "the TPU is active")

    def _lost_host_0(self, exits: list[ContainerExit]) -> bool:
        """Whether the other hosts have stopped and host 0 does not report."""
        if not exits:
            return False
        self._silent_seconds += max(self._config.cloud.poll_seconds, 1.0)
        return self._silent_seconds > _SILENT_SECONDS

    def exits(self, attempt: str) -> list[ContainerExit]:
        """Returns the container exits that the hosts of an attempt have reported, by host number."""
        prefix = _report_url(self._config, attempt).removesuffix(".txt")
        exits = []
        for url in self._objects.list(prefix):
            name = re.fullmatch(r"(?:-(\d+))?\.txt", url.removeprefix(prefix))
            if name:
                text = self._objects.read(url) or ""
                status, _, log = text.partition("\n")
                if not re.fullmatch(r"\d{1,3}", status):  # a disk was full, or somebody else has written it
                    status, log = "1", f"{url} does not begin with an exit status:\n{text}"
                exits.append(ContainerExit(host=int(name[1] or 0), status=int(status), log=log))
        return sorted(exits, key=lambda container: container.host)


def causes_of(exits: list[ContainerExit], *, preempted: bool = False) -> list[ContainerExit]:
    """Returns the exits that ended the training, the cause first; none if it continues or was stopped externally.

    Args:
        exits: Exits of all hosts that have reported.
        preempted: Whether the TPU is being taken away.
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
        and not (container.host > 0 and container.status in (ABORTED, ExitStatus.DONE))
    ]
    # `fit` on host 0 ends with one of these if another host fails. The cause is in that host's report.
    lost_host = (ExitStatus.INTERRUPTED, ExitStatus.CLOUD)
    return sorted(failed, key=lambda container: container.host == 0 and container.status in lost_host)


def describe(exits: list[ContainerExit], *, other_logs: str) -> str:
    """Returns a message about the exits that ended the training, the cause first.

    Args:
        exits: At least one exit.
        other_logs: A sentence on the location of the output that the message has no room for.
    """
    lines = [
        f"{'`fit`' if each.host == 0 else f'host {each.host} of the TPU'} exited with status {each.status} (see "
        f"docs/training.md). Its last output:\n{each.log}"
        for each in exits[:MAX_LOGS]
    ]
    if other_hosts := ", ".join(str(container.host) for container in exits[MAX_LOGS:]):
        lines.append(f"Other hosts that failed: {other_hosts}; {other_logs}")
    return "\n".join(lines)
