"""The verb `train-tokenizer`: trains a tokenizer. Options → plan → sample → train → folder → summary."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version

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
from beam_pipeline.support.progress import tracked
from beam_pipeline.tokenization import hub, tokenizer_folder
from beam_pipeline.tokenization.library_errors import EncodingError, library_errors
from beam_pipeline.verbs import corpus_sample
from beam_pipeline.verbs.corpus_sample import Sample, SampleJob
from beam_pipeline.verbs.results import TrainedTokenizer
from beam_pipeline.views.round_trip import measure
from tokenmill_reader.console.elapsed import elapsed

_STAGES = [("sample", "MB", 1e6)]

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
        sizes = f"{megabytes(trained.sample_bytes)} of {megabytes(trained.input_bytes)}"
        print(f"round trip: {trained.round_trip.describe()}, e.g. {trained.round_trip.example}")
        print(
            f"{config.model} tokenizer of {trained.vocab_size:,} tokens from "
            f"{counted(trained.sample_documents, 'document')} ({sizes}), {trained.bytes_per_token:.2f} bytes per "
            f"token, in {trained.seconds:.1f} s: {trained.output}"
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
    """Samples the corpus, trains the tokenizer and writes it. Returns the figures of the summary."""
    output, fingerprint = launch.output, held.holder.fingerprint
    staging = tokenizer_folder.staging(output, fingerprint)
    try:
        with launch.progress(_STAGES, planned.bytes) as address:
            job = SampleJob(
                folder=staging,
                plan_path=filesystem.join(staging, "plan.jsonl"),
                num_units=len(planned.units),
                share=config.sample_bytes / max(1, planned.bytes),
                seed=config.seed,
                read_options=config.input,
                skip_bad=config.on_bad_record == "skip",
                progress=address,
            )
            write_plan(job.plan_path, planned.units)
            launch.run(lambda pipeline: corpus_sample.build(pipeline, job), held_lock=held)
        sample = Sample(staging, job.share, config.sample_bytes)
        if not sample.bytes:
            raise DataError(
                "nothing to train on: the sample has none of the documents of the input "
                f"({counted(len(planned.files), 'file')}, {planned.bytes:,} bytes); check that the files contain text "
                "and that --sample_bytes is large enough"
            )
        _log.info(
            f"training: a {config.model} model of {config.vocab_size:,} tokens on {megabytes(sample.bytes)}"
        )
        trained = _train(config, sample)
        files = trained.files()
        bytes_per_token = _bytes_per_token(files["tokenizer.json"].decode(), sample)
        kept = measure(files["tokenizer.json"].decode(), _spread(sample, _ROUND_TRIP_BYTES))
        record = {
            **provenance,
            "inputs": {"files": len(planned.files), "bytes": planned.bytes},
            "sample": {"documents": sample.documents, "bytes": sample.bytes},
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
            f"--vocab_size {config.vocab_size}: the sample supports {size:,} tokens only, so the tokenizer has no more"
        )
    return {
        "vocab_size": size,
        "sample_documents": sample.documents,
        "sample_bytes": sample.bytes,
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


def _train(config: TrainTokenizerConfig, sample: Sample):
    from beam_pipeline.tokenization import training  # imported late, since workers do not need it

    try:
        with _show_progress(sample) as texts, library_errors():
            return training.train(
                config.model,
                texts,
                vocab_size=config.vocab_size,
                special_tokens=config.special_tokens,
                strict=config.strict,
                normalize=config.normalize,
                lowercase=config.lowercase,
            )
    except EncodingError as error:
        raise DataError(f"--model {config.model}: cannot be trained on this text: {error}") from error


@contextlib.contextmanager
def _show_progress(sample: Sample) -> Iterator[Callable[[], Iterator[str]]]:
    """Shows a bar while the sample's texts are read, and the time while the model is trained after that."""
    with contextlib.ExitStack() as training:

        def texts() -> Iterator[str]:
            training.close()
            yield from tracked(sample.texts(), sample.documents, label="count", unit="documents")
            training.enter_context(elapsed("training the model"))

        yield texts


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


def _spread(sample: Sample, size: int) -> list[str]:
    """Returns documents that are spread evenly over the sample, about `size` bytes."""
    step = max(1, sample.bytes // size)
    return [text for number, text in enumerate(sample.texts()) if number % step == 0]


def _bytes_per_token(tokenizer_json: str, sample: Sample) -> float:
    texts = _spread(sample, _MEASURED_BYTES)
    ids, _ = make_engine("hf", tokenizer_json).encode_batch(texts)
    return sum(len(text.encode()) for text in texts) / max(1, len(ids))
