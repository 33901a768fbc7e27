"""Several datasets as one: a fixed schedule determines the dataset of each row of the stream."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from tokenmill_reader import notebooks
from tokenmill_reader.dataset import Dataset, Rows
from tokenmill_reader.errors import DatasetError
from tokenmill_reader.fingerprints import PLUS
from tokenmill_reader.indexes import Index, row_numbers

PERIOD = 10_000
"""Rows in one period of the schedule. A dataset's share is a whole number of them."""
_SCHEDULE = 3  # the purpose of a Philox key, other than those in order.py


class Mixture:
    """The rows of several datasets: first all of the first dataset, then all of the second, …

    An `Order` of a mixture reads them in proportion to their shares.
    """

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[float | None]) -> None:
        """
        Args:
            datasets: At least one.
            weights: Their relative shares of the rows. None is replaced by the number of rows, so that all rows of
                such datasets are read equally often.

        Raises:
            DatasetError: If the datasets have other features, lengths of rows, or tokenizers, or a share is too small.
            ValueError: If there is no dataset, or not a positive weight for each.
        """
        if not datasets or len(weights) != len(datasets):
            raise ValueError(
                f"{len(weights)} weights for {len(datasets)} datasets; give one for each dataset"
            )
        for dataset, weight in zip(datasets, weights, strict=True):
            if weight is not None and not _is_weight(weight):
                raise ValueError(f"{dataset.path}: its weight is {weight!r:.80}, not a number above 0")
        first_dataset = datasets[0]
        for other in datasets[1:]:
            for name in ("max_length", "features"):
                if getattr(other, name) != getattr(first_dataset, name):
                    raise DatasetError(
                        f"{other.path}: its {name} is {getattr(other, name)}, but that of {first_dataset.path} is "
                        f"{getattr(first_dataset, name)}; prepare both with the same options"
                    )
            if first_dataset.manifest and other.manifest:
                first_tokenizer, other_tokenizer = (
                    dataset.manifest["tokenizer"].get("sha256") for dataset in (first_dataset, other)
                )
                if first_tokenizer != other_tokenizer:
                    raise DatasetError(
                        f"{other.path}: prepared with another tokenizer than {first_dataset.path}; prepare both with "
                        "the same one"
                    )
        values = [
            len(dataset) if weight is None else weight
            for dataset, weight in zip(datasets, weights, strict=True)
        ]
        self.datasets = tuple(datasets)
        self.max_length, self.features = first_dataset.max_length, first_dataset.features
        """The same as those of each dataset."""
        self.shares = _shares(values)
        """The rows of each dataset in a period of the schedule; they sum to `PERIOD`."""
        for dataset, value, share in zip(datasets, values, self.shares, strict=True):
            if not share:
                raise DatasetError(
                    f"{dataset.path}: its weight is {value:g} of {sum(values):g}, less than one row in {PERIOD}; "
                    "increase its weight or remove it"
                )
        rows = np.array([len(dataset) for dataset in datasets])
        self.first_rows = np.cumsum(rows) - rows
        """The number of each dataset's first row, int64[datasets]."""

    @classmethod
    def open(cls, weights: Mapping[str | os.PathLike[str], float | None], **options: Any) -> Mixture:
        """Opens the folders in `weights`, which has their relative shares. Options are those of `Dataset.open`."""
        return cls([Dataset.open(path, **options) for path in weights], list(weights.values()))

    def __len__(self) -> int:
        """The number of rows."""
        return sum(len(dataset) for dataset in self.datasets)

    @property
    def path(self) -> str:
        """The folders, for messages."""
        return ", ".join(dataset.path for dataset in self.datasets)

    @property
    def tokenizer_path(self) -> str | None:
        """The folder of the first dataset's tokenizer, which is that of all; None if it has none."""
        return self.datasets[0].tokenizer_path

    @property
    def fingerprint(self) -> str:
        """Identifies the rows and, up to the seed, their order. That of a single dataset is the dataset's."""
        if len(self.datasets) == 1:
            return self.datasets[0].fingerprint
        return PLUS.join(
            f"{share}×{dataset.fingerprint}"
            for share, dataset in zip(self.shares, self.datasets, strict=True)
        )

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{share / PERIOD:g} of {dataset.path!r}"
            for share, dataset in zip(self.shares, self.datasets, strict=True)
        )
        return f"Mixture({len(self)} rows of {self.max_length} tokens: {parts})"

    def _repr_html_(self) -> str:
        """Shows the first rows of each dataset in a notebook."""
        return notebooks.message(repr(self)) + "".join(dataset._repr_html_() for dataset in self.datasets)

    def __getitem__(self, index: Index) -> Rows:
        """Reads rows, as `Dataset.__getitem__` does."""
        rows = row_numbers(index, len(self), "the mixture")
        values_by_feature = {name: np.empty((rows.size, self.max_length), np.int32) for name in self.features}
        for positions, dataset, numbers in self._parts(np.atleast_1d(rows)):
            for name, values in dataset[numbers].items():
                values_by_feature[name][positions] = values
        return (
            values_by_feature
            if rows.ndim
            else {name: values[0] for name, values in values_by_feature.items()}
        )

    def __iter__(self) -> Iterator[Rows]:
        """Yields all rows in order."""
        return itertools.chain.from_iterable(self.datasets)

    def locate(self, row: int) -> tuple[str, int]:
        """Returns the path of a row's shard, and the number of its record there."""
        [(_, dataset, [number])] = self._parts(row_numbers([row], len(self), "the mixture"))
        name, record = dataset.locate(int(number))
        return f"{dataset.path}/{name}", record

    def verify(self) -> None:
        """Verifies each dataset, as `Dataset.verify` does."""
        for dataset in self.datasets:
            dataset.verify()

    def keep_open(self, shards: int) -> None:
        """Keeps at least so many shards of each dataset open, as `Dataset.keep_open` does."""
        for dataset in self.datasets:
            dataset.keep_open(shards)

    def read_ahead(self, rows: np.ndarray) -> None:
        """Loads the shards with these rows in the background, if their dataset is remote."""
        for _, dataset, numbers in self._parts(rows):
            dataset.read_ahead(numbers)

    def _parts(self, rows: np.ndarray) -> list[tuple[np.ndarray, Dataset, np.ndarray]]:
        """Returns, for each dataset that has some of the rows, which these are, and their numbers in it."""
        dataset_index = np.searchsorted(self.first_rows, rows, side="right") - 1
        parts = [
            (np.flatnonzero(dataset_index == number), dataset) for number, dataset in enumerate(self.datasets)
        ]
        return [
            (positions, dataset, rows[positions] - first_row)
            for (positions, dataset), first_row in zip(parts, self.first_rows.tolist(), strict=True)
            if positions.size
        ]


def _is_weight(value: Any) -> bool:
    """Whether a value is a finite number above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value < math.inf


def _shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Divides `PERIOD` in proportion to `weights` by the largest-remainder method."""
    exact = [weight / math.fsum(weights) * PERIOD for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: shares[index] - exact[index])
    for index in by_remainder[: PERIOD - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


def schedule(shares: Sequence[int], *, seed: int) -> np.ndarray:
    """Returns the dataset of each row of a period, int64[PERIOD]. Dataset d occurs shares[d] times, evenly spread."""
    # Dataset d's rows come at times (i + phase) / shares[d] in [0, 1), with a random phase per dataset. Sorting the
    # times of all datasets interleaves them.
    random = np.random.Philox(key=np.array([seed | _SCHEDULE << 32, 0], np.uint64)).random_raw(len(shares))
    phases = (random >> np.uint64(11)).astype(np.float64) / 2**53
    times = [(np.arange(share) + phase) / share for share, phase in zip(shares, phases, strict=True)]
    return np.repeat(np.arange(len(shares)), shares)[np.argsort(np.concatenate(times), kind="stable")]
