"""The verb `train-tokenizer`: trains a tokenizer. Options → plan → count words → train → folder → summary."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

import pyarrow as pa

from beam_pipeline import __version__
from beam_pipeline.dataset.lock_holder import Lock
from beam_pipeline.dataset.output_place import refuse_overlap
from beam_pipeline.engines.engine import make_engine
from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.tokenizer_options import TrainTokenizerConfig
from beam_pipeline.runners import launching
from beam_pipeline.runners.launching import Launch
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.units import write_plan
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted, megabytes
from beam_pipeline.support.console import print_document
from beam_pipeline.support.errors import DataError, LockLost
from beam_pipeline.tokenization import hub, tokenizer_folder
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.verbs import corpus_words
from beam_pipeline.verbs.corpus_words import CountedCorpus, CountJob
from beam_pipeline.verbs.results import TrainedTokenizer
from beam_pipeline.views.round_trip import measure
from tokenmill_reader.console.elapsed import elapsed

_STAGES = [("count", "MB", 1e6)]

# The most bytes of different words that a model is trained on. Learning merges takes some 15 bytes of memory for
# each, and SentencePiece 100 and far more time.
_MOST_WORD_BYTES = {"bpe": 128 << 20, "wordpiece": 128 << 20, "unigram": 8 << 20}

# Bytes of the sample that are tokenized to compute the bytes per token of the summary, and to measure what is lost.
_MEASURED_BYTES = 2 << 20
_ROUND_TRIP_BYTES = 512 << 10

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If options, input and output contradict each other. This is found before long work starts.
        DataError: If the corpus cannot be read, or has too little text for such a tokenizer.
    """
    config, beam_args = parse(TrainTokenizerConfig, argv)
    trained = train_tokenizer(config, beam_args)
    if config.console.json:
        print_document(trained.to_json())
        return
    if trained.vocab_size is None:
        print(f"{config.output} already contains this tokenizer: nothing to do")
    else:
        print(f"round trip: {trained.round_trip.describe()}, e.g. {trained.round_trip.example}")
        print(
            f"{config.model} tokenizer of {trained.vocab_size:,} tokens from "
            f"{counted(trained.documents, 'document')} ({megabytes(trained.text_bytes)}), "
            f"{trained.bytes_per_token:.2f} bytes per token, in {trained.seconds:.1f} s: {trained.output}"
        )
    if trained.url:
        print(f"pushed to the hub: {trained.url}")


def train_tokenizer(config: TrainTokenizerConfig, beam_args: Sequence[str]) -> TrainedTokenizer:
    """Trains a tokenizer. Prints nothing; progress is on stderr.

    Args:
        config: The options, complete.
        beam_args: Beam's options.

    Raises:
        UsageError, DataError: See `main`.
    """
    began = time.monotonic()
    launch = launching.begin("train-tokenizer", beam_args, config.output)
    if config.push_to_hub:
        hub.check_repo(config.push_to_hub)
    output = launch.output
    planned = launch.plan(config.input, skip_bad=config.on_bad_record == "skip")
    config = replace(config, input=planned.config)
    provenance = _describe(config, planned)
    fingerprint = hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()
    refuse_overlap(output, (), (file.path for file in planned.files))
    with launch.hold(tokenizer_folder.lock_folder(output), fingerprint) as held:
        is_kept = tokenizer_folder.claim(
            output, fingerprint, overwrite=config.overwrite, resume=config.resume
        )
        figures = {} if is_kept else _make(launch, held, config, planned, provenance)
    seconds = None if is_kept else round(time.monotonic() - began, 3)
    url = None
    if config.push_to_hub:
        url = hub.push(tokenizer_folder.read(output), config.push_to_hub, place=output)
    return TrainedTokenizer(output=output, seconds=seconds, url=url, **figures)


def _make(
    launch: Launch, held: Lock, config: TrainTokenizerConfig, planned: InputPlan, provenance: dict
) -> dict[str, float]:
    """Counts the corpus's words, trains the tokenizer and writes it. Returns the figures of the summary."""
    output, fingerprint = launch.output, held.holder.fingerprint
    staging = tokenizer_folder.staging(output, fingerprint)
    try:
        with launch.progress(_STAGES, planned.bytes) as address:
            job = CountJob(
                folder=staging,
                plan_path=filesystem.join(staging, "plan.jsonl"),
                num_units=len(planned.units),
                input_bytes=planned.bytes,
                model=config.model,
                normalize=config.normalize,
                lowercase=config.lowercase,
                seed=config.seed,
                read_options=config.input,
                skip_bad=config.on_bad_record == "skip",
                progress=address,
            )
            write_plan(job.plan_path, planned.units)
            launch.run(lambda pipeline: corpus_words.build(pipeline, job), held_lock=held)
        corpus = CountedCorpus(staging)
        if not corpus.bytes:
            raise DataError(
                "nothing to train on: there are no documents in the input "
                f"({counted(len(planned.files), 'file')}, {planned.bytes:,} bytes); check that the files contain text"
            )
        words = corpus.words(_MOST_WORD_BYTES[config.model])
        _log.info(
            f"training: a {config.model} model of {config.vocab_size:,} tokens on {megabytes(corpus.bytes)}, "
            f"{words.describe()}"
        )
        trained = _train(config, words.table)
        files = trained.files()
        tokenizer_json = files["tokenizer.json"].decode()
        bytes_per_token = _bytes_per_token(tokenizer_json, corpus.sample)
        kept = measure(tokenizer_json, _spread(corpus.sample, _ROUND_TRIP_BYTES))
        record = {
            **provenance,
            "inputs": {"files": len(planned.files), "bytes": planned.bytes},
            "text": {"documents": corpus.documents, "bytes": corpus.bytes},
            "words": words.to_json(),
            "bytes_per_token": round(bytes_per_token, 4),
            "round_trip": kept.to_json(),
        }
        held.check()
        tokenizer_folder.commit(output, fingerprint, record, files)
    finally:
        _clear(held, output, fingerprint)
    size = trained.tokenizer.get_vocab_size()
    if size < config.vocab_size:
        _log.warning(
            f"--vocab_size {config.vocab_size}: the text supports {size:,} tokens only, so the tokenizer has no more"
        )
    return {
        "vocab_size": size,
        "documents": corpus.documents,
        "text_bytes": corpus.bytes,
        "input_bytes": planned.bytes,
        "bytes_per_token": round(bytes_per_token, 4),
        "round_trip": kept,
    }


def _clear(held: Lock, output: str, fingerprint: str) -> None:
    """Deletes the staging folder, unless another run has taken it over or a job may still write to it."""
    if held.kept:
        return
    with contextlib.suppress(LockLost):
        held.check()
        tokenizer_folder.clear(output, fingerprint)


def _train(config: TrainTokenizerConfig, words: pa.Table):
    from beam_pipeline.tokenization import training  # imported late, since workers do not need it

    try:
        with elapsed("training the model"), library_errors():
            return training.train(
                config.model,
                words,
                vocab_size=config.vocab_size,
                special_tokens=config.special_tokens,
                strict=config.strict,
                normalize=config.normalize,
                lowercase=config.lowercase,
            )
    except EncodingError as error:
        raise DataError(f"--model {config.model}: cannot be trained on this text: {error}") from error


def _describe(config: TrainTokenizerConfig, planned: InputPlan) -> dict:
    """Returns everything that determines the tokenizer's bytes."""
    return {
        "config": config.identity(),
        "inputs": planned.describe_files(),
        "versions": {
            "tokenmill": __version__,
            **{name: version(name) for name in ("tokenizers", "sentencepiece")},
        },
    }


def _spread(texts: list[str], size: int) -> list[str]:
    """Returns texts that are spread evenly over the sample, about `size` bytes."""
    total = sum(len(text.encode()) for text in texts)
    return texts[:: max(1, total // size)]


def _bytes_per_token(tokenizer_json: str, sample: list[str]) -> float:
    texts = _spread(sample, _MEASURED_BYTES)
    ids, _ = make_engine("hf", tokenizer_json).encode_batch(texts)
    return sum(len(text.encode()) for text in texts) / max(1, len(ids))
