"""The tokens of a run: those of datasets, or those that `prepare --estimate` expects."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tpu_trainer.config import PlanConfig
from tpu_trainer.data.plan import DataPlan
from tpu_trainer.planning.scaling_laws import effective_tokens
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """The tokens that a run reads."""

    unique: float
    """Different tokens in all sources that it reads."""
    read: float
    effective: float
    """What they are worth if none were repeated."""
    margin: float | None
    """Relative, of 19 of 20 cases, around all three; 0 for datasets, None if unknown."""
    tokens_per_row: float

    def scaled(self, epochs: float) -> tuple[float, float]:
        """Returns the tokens read and what they are worth if all sources were read this often."""
        return epochs * self.unique, effective_tokens(self.unique, epochs * self.unique)


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


def corpus_of_estimate(config: PlanConfig) -> Corpus:
    """Returns the tokens of a run on what `prepare --estimate --json` has estimated.

    Raises:
        UsageError: If the file has no estimate of rows.
    """
    path = config.estimate
    try:
        estimate = json.loads(files.read_bytes(path))
        split = estimate["splits"].get("train") or next(iter(estimate["splits"].values()))
        unique, rows, error = float(split["tokens"]), float(split["rows"]), estimate["token_error"]
        if not (unique > 0 and rows > 0 and (error is None or error >= 0)):
            raise ValueError("no tokens or no rows")
    except FileNotFoundError as cause:
        raise UsageError(f"--estimate is {path!r}: there is no such file") from cause
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as cause:
        raise UsageError(
            f"--estimate is {path!r}: not what `tokenmill prepare --estimate --json` prints ({cause!r})"
        ) from cause
    read = config.train.rows_before(config.train.steps) * unique / rows
    return Corpus(
        unique=unique,
        read=read,
        effective=effective_tokens(unique, read),
        margin=None if error is None else 2 * error,
        tokens_per_row=unique / rows,
    )
