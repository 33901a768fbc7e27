"""The verbs as functions. They print nothing to stdout: progress is on stderr, and messages go to the logger
`beam_pipeline`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from beam_pipeline.options import verbs
from beam_pipeline.options.from_python import beam_arguments, completed
from beam_pipeline.support.errors import UsageError

if TYPE_CHECKING:
    from beam_pipeline.options.verbs import AnnotateConfig, PrepareConfig, TrainTokenizerConfig
    from beam_pipeline.verbs.results import (
        AnnotatedCorpus,
        Estimate,
        PreparedDataset,
        TrainedTokenizer,
        Verification,
    )


def prepare(config: PrepareConfig, **beam_options: Any) -> PreparedDataset:
    """Turns a corpus into a dataset.

    Args:
        config: The options of `tokenmill prepare`.
        beam_options: Beam's options, such as `runner="DataflowRunner"`. Without a runner, this process runs the
            pipeline.

    Returns:
        The summary of the dataset. With a Dataflow job and without `wait`, it is not finished yet.

    Raises:
        UsageError: If options, tokenizer, input and output contradict each other. Nothing is written then.
        DataError: If the input is invalid or cannot be read. No dataset is written then.
    """
    from beam_pipeline.verbs import prepare as verb

    config = _completed(config, "PrepareConfig")
    if config.estimate:
        raise UsageError("estimate=True: writes nothing; call tokenmill.estimate")
    return verb.prepare(config, _beam_arguments(beam_options))


def estimate(config: PrepareConfig, **beam_options: Any) -> Estimate:
    """Estimates the output and cost of `prepare` with the same arguments from a sample, and writes nothing.

    Raises:
        UsageError, DataError: As `prepare` does.
    """
    from beam_pipeline.verbs import prepare as verb

    return verb.estimate_run(_completed(config, "PrepareConfig"), _beam_arguments(beam_options))


def annotate(config: AnnotateConfig, **beam_options: Any) -> AnnotatedCorpus:
    """Measures each document of a corpus once, so that `prepare` can decide by the measures.

    Args:
        config: The options of `tokenmill annotate`.
        beam_options: Beam's options, as in `prepare`.

    Raises:
        UsageError: If options, input and output contradict each other. Nothing is written then.
        DataError: If the input cannot be read, or a function fails.
    """
    from beam_pipeline.verbs import annotate as verb

    return verb.annotate(_completed(config, "AnnotateConfig"), _beam_arguments(beam_options))


def train_tokenizer(config: TrainTokenizerConfig, **beam_options: Any) -> TrainedTokenizer:
    """Trains a tokenizer on the words of a corpus.

    Args:
        config: The options of `tokenmill train-tokenizer`.
        beam_options: Beam's options, as in `prepare`.

    Raises:
        UsageError: If options, input and output contradict each other. Nothing is written then.
        DataError: If the corpus cannot be read, or has too little text for such a tokenizer.
    """
    from beam_pipeline.verbs import train_tokenizer as verb

    return verb.train_tokenizer(_completed(config, "TrainTokenizerConfig"), _beam_arguments(beam_options))


def verify(dataset: str | os.PathLike[str], **beam_options: Any) -> Verification:
    """Checks that a dataset, or one of its splits, is complete and undamaged.

    Args:
        dataset: The folder.
        beam_options: Beam's options. If there are any, a Beam pipeline reads the shards.

    Returns:
        The defects. They are a result, not an error: a folder without a dataset has one, too.

    Raises:
        UsageError: If Beam's options are wrong.
    """
    from beam_pipeline.verbs import verify as verb

    return verb.verify(os.fspath(dataset), _beam_arguments(beam_options))


def _completed(config: Any, name: str) -> Any:
    """Returns the complete options of a verb. Raises TypeError if they are those of another."""
    if type(config) is not getattr(verbs, name):
        raise TypeError(f"config must be a tokenmill.{name}, not {config!r:.80}")
    return completed(config)


def _beam_arguments(beam_options: Mapping[str, Any]) -> list[str]:
    """Returns Beam's options as arguments. Raises UsageError if Beam has no such option."""
    arguments = beam_arguments(beam_options)
    if arguments:
        import apache_beam  # noqa: F401 (with all of its libraries: the program may use them, too)

        from beam_pipeline.options.beam_names import check_names

        check_names(arguments, [])
    return arguments
