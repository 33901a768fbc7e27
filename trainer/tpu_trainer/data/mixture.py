"""Opens the datasets of a run as one, and describes them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tokenmill_reader import Dataset, Mixture
from tokenmill_reader.fingerprints import same_rows
from tokenmill_reader.mixture import PERIOD
from tpu_trainer.config import FitConfig
from tpu_trainer.data import dataset
from tpu_trainer.data.dataset import input_files, open_split, reading
from tpu_trainer.support.errors import UsageError

_INPUTS_SHOWN = 20


def open_data(config: FitConfig) -> Mixture:
    """Opens the training data of a run, with all its stages; see `open_mixture`."""
    stages = [
        (stage.weights, partial(stage.first_step, config.train)) for stage in config.data.later_stages()
    ]
    return open_mixture(config.data.train_weights, stages, config.train.rows_before)


def open_mixture(
    weights: Mapping[str, float | None],
    stages: Sequence[tuple[Mapping[str, float | None], Callable[[int], int]]] = (),
    rows_before: Callable[[int], int] = int,
) -> Mixture:
    """Opens the splits in `weights` and checks that they are compatible.

    Args:
        weights: Maps each folder to its relative share of the rows. None is replaced by the split's number of rows, so
            that all rows of such splits are read equally often.
        stages: The weights of later stages, and the first step of each as a function of the tokens in a row.
        rows_before: Returns the rows of all steps before one.

    Raises:
        UsageError: If a split is incomplete, splits are incompatible, a share is too small, or stages do not ascend.
    """
    all_weights = [weights, *(stage_weights for stage_weights, _ in stages)]
    splits = {path: open_split(path) for path in dict.fromkeys(itertools.chain.from_iterable(all_weights))}
    first, *later = [[each.get(path, 0) for path in splits] for each in all_weights]
    max_length = next(iter(splits.values())).max_length
    steps = [first_step(max_length) for _, first_step in stages]
    if any(step >= next_step for step, next_step in itertools.pairwise([0, *steps])):
        raise UsageError(
            f"--data.stages: they begin at the steps {steps}, which must ascend, the first above 0"
        )
    rows = [rows_before(step) for step in steps]
    with reading():
        mixture = Mixture(list(splits.values()), first, stages=list(zip(rows, later, strict=True)))
    if len(mixture) >= 2**31:
        raise UsageError("--data.train: the datasets have 2**31 rows or more in total; use fewer datasets")
    return mixture


def check_same_data(config: FitConfig, data: Mixture, *, step: int, trained: str) -> None:
    """Checks that a run which has made `step` steps on data with the fingerprint `trained` can continue on `data`.

    Raises:
        UsageError: If it cannot.
    """
    if not same_rows(trained, data.fingerprint_before(config.train.rows_before(step))):
        raise UsageError(
            f"{data.path}: not the data that the {step} steps of the run in --output_dir were trained on; keep "
            "--data.train, and the stages before that step, as they are in the run's config.yaml (if --train.steps "
            "changes, give the steps of stages that begin at a share of them); change the mixture from there on by a "
            f"stage {{from: {step}, weights: …}} of --data.stages; or use another --output_dir"
        )


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
    """Returns the token counts of the first stage's rows, float64[vocab_size]; None if a dataset has no statistics.

    Those of several datasets are weighted by their shares, and correct up to a factor.
    """
    shares = [(share, split) for share, split in zip(mixture.shares, mixture.datasets, strict=True) if share]
    counts = [dataset.token_counts(split) for _, split in shares]
    if any(each is None for each in counts):
        return None
    if len(counts) == 1:
        return counts[0]
    weights = [share / len(split) for share, split in shares]
    return sum(weight * each for weight, each in zip(weights, counts, strict=True))


def source_first_rows(mixture: Mixture) -> list[int]:
    """Returns the number of the first row of each source whose sums a step computes; [] if there is only one."""
    return mixture.first_rows.tolist() if len(mixture.datasets) > 1 else []


def source_names(mixture: Mixture) -> list[str]:
    """Returns a name for each dataset: the last two components of its path, with a number if others have the same.

    Datasets that are added later do not change the names of the others.
    """
    names: list[str] = []
    for split in mixture.datasets:
        name = _name(split)
        same = sum(other.rpartition("#")[0] == name or other == name for other in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


def _name(split: Dataset) -> str:
    return "/".join(split.path.rstrip("/").split("/")[-2:])


def tokens_per_row(split: Dataset) -> float:
    """Returns the mean number of tokens in a row, without padding if the manifest counts them."""
    totals = (split.manifest or {}).get("totals")
    tokens = totals.get("tokens") if isinstance(totals, dict) else None
    return split.max_length if tokens is None else tokens / len(split)


def describe(
    mixture: Mixture, rows_read: np.ndarray, validation: Mapping[str, Dataset]
) -> list[dict[str, Any]]:
    """Describes the data of a run: one JSON entry per split, with its name, use, share, sizes and sources.

    Args:
        mixture: The training data.
        rows_read: The rows of each dataset that the run reads, int64[datasets]. They give the shares over all stages.
        validation: Name → split.
    """
    shares = [None]
    if len(mixture.datasets) > 1:
        one_stage = len(mixture.stages) == 1
        shares = (
            [share / PERIOD for share in mixture.shares] if one_stage else list(rows_read / rows_read.sum())
        )
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
                "name": _name(split),
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
