"""A look at some documents before a run: whether they are very short, and whether the tokenizer keeps their text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from beam_pipeline.options.prepare_options import PrepareConfig
from beam_pipeline.sources.document_kinds import document_kind
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.windows import windows
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.tokenization.description import TokenizerDescription
from beam_pipeline.views import round_trip
from beam_pipeline.views.round_trip import RoundTrip

# The sample is small enough for a bucket, where each place takes a request or two.
_PLACES = 32
_SAMPLE_BYTES = 256 << 10

# A file that is one document is read as a whole.
_MAX_DOCUMENT = 64 << 20

_SHORT = 100  # bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Document:
    text: str
    weight: float
    """The number of documents that it stands for."""
    remedy: str | None
    """The values of `--document` that would give longer ones, if any."""


def check_documents(
    config: PrepareConfig, planned: InputPlan, tokenizer: TokenizerDescription
) -> RoundTrip | None:
    """Warns if a sample of the documents shows that most are very short, or that the tokenizer loses text.

    The sample depends on the input and the options alone.

    Returns:
        The round trip of the sample, if the tokenizer loses any of its text.
    """
    is_kept = round_trip.keeps_text(tokenizer.json)
    if is_kept and all(file.format != "text" for file in planned.files):
        return None
    sample = _sample(planned, config.seed)
    short = _describe_short(sample)
    if short is not None:
        _log.warning(short)
    if is_kept:
        return None
    measured = round_trip.measure(
        tokenizer.json,
        (document.text for document in sample),
        parse_special_tokens=config.parse_special_tokens,
        control_ids=tokenizer.control_ids,
    )
    if not measured.changed:
        return None
    _log.warning(
        f"--tokenizer {config.tokenizer}: does not keep the text, so a model never sees what is lost: "
        f"{measured.describe()}, e.g. {measured.example}. The bpe and unigram models of train-tokenizer keep every text"
    )
    return measured


def _sample(planned: InputPlan, seed: int) -> list[_Document]:
    if planned.longest_known > _MAX_DOCUMENT:
        return []
    sample: list[_Document] = []
    try:
        for window in windows(planned, planned.config, sample_bytes=_SAMPLE_BYTES, seed=seed, places=_PLACES):
            for batch, share in window.pieces:
                kind = document_kind(batch.name, planned.config) if window.unit.format == "text" else "file"
                remedy = {"line": "paragraph or file", "paragraph": "file"}.get(kind)
                sample += (_Document(text, share * window.weight, remedy) for text in batch.texts)
    except (DataError, UsageError, OSError, pa.ArrowException):
        return sample  # the run itself reports what cannot be read, and treats bad records as the options request
    return sample


def _describe_short(sample: Sequence[_Document]) -> str | None:
    """Returns a sentence if the median of the documents that an option could make longer is very short."""
    changeable = [document for document in sample if document.remedy]
    if not changeable or 2 * len(changeable) < len(sample):
        return None
    sizes = np.array([len(document.text.encode(errors="replace")) for document in changeable])
    order = np.argsort(sizes, kind="stable")
    weights = np.cumsum(np.array([document.weight for document in changeable])[order])
    median = int(sizes[order][np.searchsorted(weights, weights[-1] / 2)])
    if median >= _SHORT:
        return None
    return (
        f"half of the documents have at most {median} bytes, so a model sees little context; if these are parts of "
        f"longer texts, use --document {changeable[0].remedy}"
    )
