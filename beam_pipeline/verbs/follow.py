"""The verb `follow`: shows the state, messages and counters of a Dataflow job until it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.verbs import FollowConfig
from beam_pipeline.runners import beam_options
from beam_pipeline.runners.dataflow.following import CancelRequest, DataflowJobFollower
from beam_pipeline.runners.dataflow.launch import new_client
from beam_pipeline.support import extras, filesystem
from beam_pipeline.support.console import print_document


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb; returns when the job is done.

    Raises:
        UsageError: If Google Cloud's packages are not installed.
        DataError: If the job failed, was cancelled, or cannot be found.
    """
    config, beam_args = parse(FollowConfig, argv)
    extras.require("gcp")
    options = beam_options.parse([*beam_args, "--project", config.project, "--region", config.region])
    filesystem.configure(options)
    request = CancelRequest()
    with request.watched() if config.cancel_on_signal else contextlib.nullcontext():
        DataflowJobFollower(new_client(options), config.job, cancel=request).follow()
    if config.console.json:
        print_document({"job": config.job, "state": "done"})
    else:
        print(f"the Dataflow job {config.job} is done")
