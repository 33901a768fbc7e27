"""Beam's options: parsing them, with an error for unknown ones, which Beam ignores; and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import grpc
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

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

_SECONDS_TO_ANSWER = 30

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


def parse(argv: Sequence[str], flags: Sequence[str] = ()) -> PipelineOptions:
    """Parses Beam's options from the rest of a command line.

    Args:
        argv: The rest.
        flags: The verb's own flags, one of which the user may have misspelt.

    Raises:
        UsageError: If neither this program nor Beam knows an option, nor the job service of a runner, or the packages
            for Dataflow are not installed.
    """
    stray = [
        word
        for before, word in zip(["", *argv], argv, strict=False)
        if not word.startswith("--") and (not before.startswith("--") or "=" in before)
    ]
    options = _Options(list(argv))
    if not argv:
        return options
    unknown = [*stray, *(f"--{name}" for name in unknown_names(options))]
    endpoint = options.view_as(PortableOptions).job_endpoint
    if unknown and endpoint:
        known = _job_service_options(endpoint)
        unknown = [name for name in unknown if name not in known]
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}: neither this verb nor Beam has it"
            f"{suggestion(unknown[0], flags)}; see --help"
        )
    if runs_on_dataflow(options):
        extras.require("gcp", f"--runner {options.view_as(StandardOptions).runner}")
    return options


def unknown_names(options: PipelineOptions) -> list[str]:
    """Returns the given options that Beam does not know, without their dashes, sorted."""
    known = PipelineOptions([]).get_all_options()
    return sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))


def _job_service_options(endpoint: str) -> set[str]:
    """Returns the options of the runner behind a job service, with their dashes.

    Raises:
        UsageError: If no job service answers at the endpoint.
    """
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        request = beam_job_api_pb2.DescribePipelineOptionsRequest()
        try:
            found = service.DescribePipelineOptions(request, timeout=_SECONDS_TO_ANSWER, wait_for_ready=True)
        except grpc.RpcError as error:
            raise UsageError(
                f"--job_endpoint {endpoint}: no job service answers there ({error.details()})"
            ) from error
    return {f"--{option.name}" for option in found.options}


def runs_here(options: PipelineOptions) -> bool:
    """Returns whether no runner is given, so the pipeline runs on this machine."""
    return options.view_as(StandardOptions).runner is None


def starts_workers_here(options: PipelineOptions) -> bool:
    """Returns whether Beam's local runner runs the pipeline in worker processes.

    Prism, which the DirectRunner tries first, has none.
    """
    mode = options.view_as(DirectOptions).direct_running_mode
    return mode == "multi_processing" and _runner(options) in _RUNNERS_WITH_WORKERS


def runs_on_dataflow(options: PipelineOptions) -> bool:
    return "dataflow" in _runner(options)


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
    if _runner(options) in _LOCAL_RUNNERS:
        return True
    if runs_on_dataflow(options):
        return False
    return options.view_as(PortableOptions).environment_type in ("LOOPBACK", "PROCESS", "EXTERNAL")


def _runner(options: PipelineOptions) -> str:
    """Returns the name of the runner's class in lower case; "" if no runner is given."""
    return (options.view_as(StandardOptions).runner or "").rpartition(".")[2].lower()
