"""Runs a pipeline in this process, without Beam."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from beam_pipeline.runners.interruption import PipelineThread
from beam_pipeline.support.errors import DataError, user_message
from beam_pipeline.support.pipelines import Pipeline


def run(build: Callable[[Pipeline], None]) -> None:
    """Builds and runs a pipeline.

    Args:
        build: Adds the pipeline's steps.

    Raises:
        DataError: If a step failed with an error that a user can fix. The message is the step's.
    """
    pipeline = Pipeline()
    build(pipeline)
    try:
        PipelineThread(pipeline.run).run(contextlib.nullcontext())
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        raise DataError(message) from error
