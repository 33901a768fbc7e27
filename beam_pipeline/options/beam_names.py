"""Beam's options: their names, which Beam itself does not check, and their values."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.lean_beam import import_beam
from tokenmill_reader.console.spelling import suggestion

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_SECONDS_TO_ANSWER = 30


def check_names(
    arguments: Sequence[str], flags: Sequence[str], places: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Checks the names of options in the rest of a command line. Imports Beam.

    Args:
        arguments: The rest.
        flags: The verb's own flags, one of which the user may have misspelt.
        places: The file and line of options that are from a file, by their names without dashes.

    Raises:
        UsageError: If Beam does not know an option, nor does the job service of a runner, or a value is invalid.
    """
    if not any(word.startswith("--runner") for word in arguments):
        import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions

    stray = [
        word
        for before, word in zip(["", *arguments], arguments, strict=False)
        if not word.startswith("--") and (not before.startswith("--") or "=" in before)
    ]
    if stray:
        raise UsageError(f"{stray[0]!r}: belongs to no option; see --help")
    options = _parsed(PipelineOptions, arguments)
    unknown = [f"--{name}" for name in unknown_names(options)]
    endpoint = options.view_as(PortableOptions).job_endpoint
    if unknown and endpoint:
        known = _job_service_options(endpoint)
        unknown = [name for name in unknown if name not in known]
    if unknown:
        beams = [f"--{name}" for name in PipelineOptions([]).get_all_options()]
        meant = suggestion(unknown[0], flags) or suggestion(unknown[0], beams)
        place = places.get(unknown[0].removeprefix("--"))
        raise UsageError(
            f"{f'{place}: ' if place else ''}unknown option {', '.join(unknown)}: neither this verb nor Beam has it"
            f"{meant}; see --help"
        )


def _parsed(kind: type[PipelineOptions], arguments: Sequence[str]) -> PipelineOptions:
    """Parses options as Beam does, which prints its usage and ends the process if a value is invalid."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            options = kind(list(arguments))
            options.get_all_options()
            return options
    except SystemExit as error:
        reason = printed.getvalue().rpartition("error: argument ")[2].strip()
        raise UsageError(f"{reason} (an option of Beam)") from error


def unknown_names(options: PipelineOptions) -> list[str]:
    """Returns the given options that Beam does not know, without their dashes, sorted."""
    known = type(options)([]).get_all_options()
    return sorted(set(options.get_all_options(retain_unknown_options=True)) - set(known))


def _job_service_options(endpoint: str) -> set[str]:
    """Returns the options of the runner behind a job service, with their dashes.

    Raises:
        UsageError: If no job service answers at the endpoint.
    """
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

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
