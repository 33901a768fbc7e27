"""The options that are Beam's: checked, so that a misspelt one is an error and not silently ignored."""

from __future__ import annotations

import os
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)

from beam_pipeline.errors import UsageError

_LOCAL_RUNNERS = (
    "",
    "directrunner",
    "bundlebaseddirectrunner",
    "switchingdirectrunner",
    "fnapirunner",
    "prismrunner",
)

_RUNNERS_WITH_WORKERS = ("", "directrunner", "switchingdirectrunner", "fnapirunner")


def parse(argv: Sequence[str]) -> PipelineOptions:
    """Beam's options from what is left of a command line.

    Raises:
      UsageError: naming what neither this program nor Beam knows.
    """
    stray = [
        word
        for before, word in zip(["", *argv], argv, strict=False)
        if not word.startswith("--") and (not before.startswith("--") or "=" in before)
    ]
    options = PipelineOptions(list(argv))
    unknown = [*stray, *(f"--{name}" for name in unknown_names(options))]
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}: neither this verb (see its --help) nor Beam has it"
        )
    return options


def unknown_names(options: PipelineOptions) -> list[str]:
    """The options among those given that Beam does not know, without their dashes, sorted."""
    known = PipelineOptions([]).get_all_options()
    return sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))


def runs_here(options: PipelineOptions) -> bool:
    """Whether no runner was asked for, so that the pipeline runs on this machine."""
    return options.view_as(StandardOptions).runner is None


def starts_workers_here(options: PipelineOptions) -> bool:
    """Whether Beam's local runner runs the pipeline in worker processes. Prism, which the DirectRunner tries first, has
    none."""
    mode = options.view_as(DirectOptions).direct_running_mode
    return mode == "multi_processing" and _runner(options) in _RUNNERS_WITH_WORKERS


def runs_on_dataflow(options: PipelineOptions) -> bool:
    return "dataflow" in _runner(options)


def engine_threads(options: PipelineOptions) -> int:
    """How many threads a tokenization engine may use: all cores where one process does all the work, else one, since
    the runner starts a process for each core."""
    in_process = options.view_as(DirectOptions).direct_running_mode == "in_memory"
    return len(os.sched_getaffinity(0)) if runs_here(options) and in_process else 1


def workers_see_local_files(options: PipelineOptions) -> bool:
    """Whether the runner's workers read this machine's files: those of local runners do, and those of others where
    the launcher starts them as its own processes."""
    if _runner(options) in _LOCAL_RUNNERS:
        return True
    if runs_on_dataflow(options):
        return False
    return options.view_as(PortableOptions).environment_type in ("LOOPBACK", "PROCESS", "EXTERNAL")


def _runner(options: PipelineOptions) -> str:
    """The runner's class, in lower case; "" where none was asked for."""
    return (options.view_as(StandardOptions).runner or "").rpartition(".")[2].lower()
