"""Opens the datasets of a run as one, and describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenmill_reader import Dataset, Mixture
from tokenmill_reader.mixture import PERIOD
from tpu_trainer.data import dataset
from tpu_trainer.data.dataset import input_files, open_split, reading
from tpu_trainer.support.errors import UsageError

_INPUTS_SHOWN = 20


def open_mixture(weights: Mapping[str, float | None]) -> Mixture:
    """Opens the splits in `weights` and checks that they are compatible.

    Args:
        weights: Maps each folder to its relative share of the rows. None is replaced by the split's number of rows, so
            that all rows of such splits are read equally often.

    Raises:
        UsageError: If a split is incomplete, splits are incompatible, or a share is too small.
    """
    splits = [open_split(path) for path in weights]
    with reading():
        mixture = Mixture(splits, list(weights.values()))
    if len(mixture) >= 2**31:
        raise UsageError("--data.train: the datasets have 2**31 rows or more in total; use fewer datasets")
    return mixture


def check_same_rows(first: Dataset, other: Dataset) -> None:
    """Checks that two splits have rows of the same length and the same tokenizer.

    Raises:
        UsageError: If they do not.
    """
    if other.max_length != first.max_length:
        raise UsageError(
            f"{other.path}: rows of {other.max_length} tokens, but {first.path} has rows of {first.max_length}; "
            "prepare both with the same --max_length"
        )
    if first.manifest and other.manifest:
        first_tokenizer, other_tokenizer = (
            split.manifest["tokenizer"].get("sha256") for split in (first, other)
        )
        if first_tokenizer != other_tokenizer:
            raise UsageError(
                f"{other.path}: prepared with another tokenizer than {first.path}; prepare both with the same one"
            )


def token_counts(mixture: Mixture) -> np.ndarray | None:
    """Returns the token counts of the rows in the stream, float64[vocab_size]; None if a dataset has no statistics.

    Those of several datasets are weighted by their shares, and correct up to a factor.
    """
    counts = [dataset.token_counts(split) for split in mixture.datasets]
    if any(each is None for each in counts):
        return None
    if len(counts) == 1:
        return counts[0]
    weights = [share / len(split) for share, split in zip(mixture.shares, mixture.datasets, strict=True)]
    return sum(weight * each for weight, each in zip(weights, counts, strict=True))


def describe(mixture: Mixture, validation: Mapping[str, Dataset]) -> list[dict[str, Any]]:
    """Describes the data of a run: one JSON entry per split, with its name, use, share, sizes and sources."""
    shares = [None] if len(mixture.datasets) == 1 else [share / PERIOD for share in mixture.shares]
    uses = [(split, "training", share) for split, share in zip(mixture.datasets, shares, strict=True)]
    uses += [(split, f"validation {name}".rstrip(), None) for name, split in validation.items()]
    entries = []
    for split, use, share in uses:
        totals = (split.manifest or {}).get("totals", {})
        if not isinstance(totals, dict):
            raise UsageError(
                f"{split.path}/manifest.json: totals is not an object; prepare the dataset again"
            )
        inputs, count = input_files(split, _INPUTS_SHOWN)
        entries.append(
            {
                "name": "/".join(split.path.rstrip("/").split("/")[-2:]),
                "use": use,
                "share": share,
                "rows": len(split),
                "max_length": split.max_length,
                "tokens": totals.get("tokens"),
                "documents": totals.get("documents"),
                "fingerprint": split.fingerprint,
                "inputs": [path.rsplit("/", 1)[-1] for path in inputs],
                "further_inputs": max(0, count - _INPUTS_SHOWN),
            }
        )
    return entries
