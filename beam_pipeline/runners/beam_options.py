"""Beam's options, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)

from beam_pipeline.support import extras
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.console.spelling import suggestion

View = TypeVar("View", bound=PipelineOptions)

_LOCAL_RUNNERS = (
    "",
    "directrunner",
    "bundlebaseddirectrunner",
    "switchingdirectrunner",
    "fnapirunner",
    "prismrunner",
)

_RUNNERS_WITH_WORKERS = ("", "directrunner", "switchingdirectrunner", "fnapirunner")


class _Options(PipelineOptions):
    """Beam's options, which keep their views.

    Beam asks for views hundreds of times while it builds a pipeline, and each new view builds an argument parser.
    Views share their values, so one of each class is enough.
    """

    def __init__(self, flags: Sequence[str]):
        object.__setattr__(self, "_views", {})  # PipelineOptions accepts no other attributes
        super().__init__(flags)

    def view_as(self, cls: type[View]) -> View:
        if cls not in self._views:
            self._views[cls] = super().view_as(cls)
        return self._views[cls]


def parse(argv: Sequence[str]) -> PipelineOptions:
    """Parses Beam's options, whose names are checked already.

    Raises:
        UsageError: If there is no such runner, or the packages for Dataflow are needed, but not installed.
    """
    options = _Options(list(argv))
    _check_runner(options.view_as(StandardOptions).runner)
    if runs_on_dataflow(options):
        extras.require("gcp", f"--runner {options.view_as(StandardOptions).runner}")
    return options


def _check_runner(name: str | None) -> None:
    known = [path.rpartition(".")[2] for path in StandardOptions.ALL_KNOWN_RUNNERS]
    if name is None or "." in name:  # a class of another package
        return
    if {name.lower(), f"{name.lower()}runner"}.isdisjoint(each.lower() for each in known):
        raise UsageError(
            f"--runner {name}: Beam has no such runner{suggestion(name, known)}; it has {', '.join(known)}"
        )


def runs_here(options: PipelineOptions) -> bool:
    """Returns whether no runner is specified, so that the pipeline runs on this machine."""
    return options.view_as(StandardOptions).runner is None


def starts_workers_here(options: PipelineOptions) -> bool:
    """Returns whether Beam's local runner runs the pipeline in worker processes.

    Prism, which the DirectRunner tries first, has none.
    """
    mode = options.view_as(DirectOptions).direct_running_mode
    return mode == "multi_processing" and _runner_name(options) in _RUNNERS_WITH_WORKERS


def runs_on_dataflow(options: PipelineOptions) -> bool:
    return "dataflow" in _runner_name(options)


def process_threads(options: PipelineOptions) -> int:
    """Returns how many threads a process that runs the steps may use.

    That is all cores if one process does all the work. Otherwise it is one, because the runner starts a process per
    core.
    """
    in_process = options.view_as(DirectOptions).direct_running_mode == "in_memory"
    return len(os.sched_getaffinity(0)) if runs_here(options) and in_process else 1


def workers_see_local_files(options: PipelineOptions) -> bool:
    """Returns whether the runner's workers can read this machine's files.

    The workers of local runners can, and so can those that run on this machine for another runner.
    """
    if _runner_name(options) in _LOCAL_RUNNERS:
        return True
    if runs_on_dataflow(options):
        return False
    return options.view_as(PortableOptions).environment_type in ("LOOPBACK", "PROCESS", "EXTERNAL")


def _runner_name(options: PipelineOptions) -> str:
    """Returns the name of the runner's class in lower case; "" if none is specified. Beam takes `direct`, too."""
    name = (options.view_as(StandardOptions).runner or "").rpartition(".")[2].lower()
    return name if not name or name.endswith("runner") else f"{name}runner"
