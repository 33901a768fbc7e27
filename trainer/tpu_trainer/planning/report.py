"""What a report of compile-check says of a step's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpu_trainer.planning.documents import read_document
from tpu_trainer.support.chips import Topology
from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of a step on all devices."""

    topology: str
    seconds: float
    """The least time of the step."""
    step: dict[str, Any]
    """What determines the step; see step_options.py."""


def read_report(path: str) -> Report:
    """Reads the file that `compile-check --output` writes for one configuration.

    Raises:
        UsageError: If it is not such a file, or the step does not fit into memory.
    """
    writer = "`compile-check --output` writes for one configuration"
    document = read_document("report", path, writer)
    try:
        [report] = document["reports"]
        topology = Topology.parse(report["topology"])
        if not report["fits"]:
            raise UsageError(
                f"--report is {path!r}: the step does not fit into the memory of {topology.name}"
            )
        roofline = report["roofline"]
        return Report(
            topology=topology.name,
            seconds=float(roofline["least_step_seconds"]),
            step=dict(report["step"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--report is {path!r}: not what {writer} ({error!r})") from error
