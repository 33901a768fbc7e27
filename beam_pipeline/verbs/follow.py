"""The verb `follow`: shows the state, messages and counters of a Dataflow job until it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from beam_pipeline.options.option_fields import flags_of, parse
from beam_pipeline.options.verbs import FollowConfig
from beam_pipeline.runners import beam_options
from beam_pipeline.runners.dataflow.following import CancelRequest, JobFollower
from beam_pipeline.runners.dataflow.launch import new_client
from beam_pipeline.support import extras, filesystem


def main(argv: Sequence[str]) -> None:
    """Runs the verb; returns when the job is done.

    Raises:
        UsageError: If Google Cloud's packages are not installed.
        DataError: If the job failed, was cancelled, or cannot be found.
    """
    config, beam_args = parse(FollowConfig, argv)
    extras.require("gcp")
    options = beam_options.parse(
        [*beam_args, "--project", config.project, "--region", config.region], flags_of(FollowConfig)
    )
    filesystem.configure(options)
    request = CancelRequest()
    with request.watched() if config.cancel_on_signal else contextlib.nullcontext():
        JobFollower(new_client(options), config.job, cancel=request).follow()
    print(f"the Dataflow job {config.job} is done")
