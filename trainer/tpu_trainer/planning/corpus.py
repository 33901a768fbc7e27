"""The tokens of a run: those of datasets, or those that `prepare --estimate` expects."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_trainer.config import PlanConfig
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.planning.documents import read_document
from tpu_trainer.planning.scaling_laws import effective_tokens
from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The tokens that a run reads."""

    unique: float
    """Different tokens in all sources that it reads."""
    read: float
    effective: float
    """Tokens that would be worth as much if none were repeated."""
    margin: float | None
    """Half the width of the interval for the tokens in 19 of 20 cases, as a share; 0 if counted, None if unknown."""
    tokens_per_row: float


@dataclass(frozen=True, kw_only=True)
class EstimatedRows:
    """The rows that `prepare` would write."""

    max_length: int
    vocab_size: int


def corpus_of_datasets(plan: DataPlan) -> Corpus:
    """Returns the tokens of a run on datasets, whose manifests have counted them."""
    figures = plan.to_json()
    sources = [each for each in figures["sources"].values() if each["tokens"]]
    sizes = [each["tokens"] / each["epochs"] for each in sources]
    return Corpus(
        unique=sum(sizes),
        read=figures["tokens"],
        effective=sum(
            effective_tokens(size, each["tokens"]) for size, each in zip(sizes, sources, strict=True)
        ),
        margin=0.0,
        tokens_per_row=figures["tokens"] / sum(each["rows"] for each in sources),
    )


def corpus_of_estimate(config: PlanConfig) -> tuple[Corpus, EstimatedRows]:
    """Returns the tokens of a run on what `prepare --estimate --json` has estimated, and the rows' shape.

    Raises:
        UsageError: If the file has no estimate of rows.
    """
    path, writer = config.estimate, "`tokenmill prepare --estimate --json` prints"
    estimate = read_document("estimate", path, writer)
    try:
        splits, max_length = estimate["splits"], estimate["max_length"]
        name = "train" if "train" in splits else next(iter(splits))
        unique, rows = float(splits[name]["tokens"]), float(splits[name]["rows"])
        error, vocab_size = estimate["token_error"], int(estimate["vocab_size"])
    except (ValueError, KeyError, TypeError, StopIteration) as cause:
        raise UsageError(f"--estimate is {path!r}: not what {writer} ({cause!r})") from cause
    if max_length is None or ("train" not in splits and len(splits) > 1):
        reason = "rows are whole documents" if max_length is None else f"the splits are {', '.join(splits)}"
        remedy = "set its --max_length" if max_length is None else "name one of them train"
        raise UsageError(f"--estimate is {path!r}: {reason}; estimate again, and {remedy}")
    if not 0 < unique <= rows * max_length * 1.001:
        raise UsageError(
            f"--estimate is {path!r}: {unique:,.0f} tokens cannot be in {rows:,.0f} rows of {max_length}"
        )
    read = config.train.rows_before(config.train.steps) * unique / rows
    corpus = Corpus(
        unique=unique,
        read=read,
        effective=effective_tokens(unique, read),
        margin=None if error is None else 2 * error,
        tokens_per_row=unique / rows,
    )
    return corpus, EstimatedRows(max_length=max_length, vocab_size=vocab_size)
