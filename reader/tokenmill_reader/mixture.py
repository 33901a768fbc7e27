"""Several datasets as one: a fixed schedule determines the dataset of each row of the stream."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from tokenmill_reader import notebooks
from tokenmill_reader.dataset import Dataset, Rows
from tokenmill_reader.errors import DatasetError
from tokenmill_reader.files import normal_folder
from tokenmill_reader.fingerprints import PLUS
from tokenmill_reader.indexes import Index, row_numbers, whole_number

PERIOD = 10_000
"""Rows in one period of the schedule. A dataset's share is a whole number of them."""
_SCHEDULE = 3  # the purpose of a Philox key, other than those in order.py
_Weights = Mapping[str | os.PathLike[str], float | None]


class Stage(NamedTuple):
    """The shares of the datasets from a row of the stream on, until the next stage."""

    first_row: int
    """Rows that all hosts have read before. The stage begins with the first step that does not begin before them."""
    shares: tuple[int, ...]
    """The rows of each dataset in a period of the schedule; they sum to `PERIOD`."""


class Mixture:
    """The rows of several datasets: first all of the first dataset, then all of the second, …

    An `Order` of a mixture reads them in proportion to their shares, which can change from stage to stage. A dataset's
    rows continue from stage to stage where they were: each row is read once in an epoch of its dataset.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        weights: Sequence[float | None],
        *,
        stages: Sequence[tuple[int, Sequence[float | None]]] = (),
    ) -> None:
        """
        Args:
            datasets: At least one. With stages, in the order in which they are first read, so that stages can be added
                without another order of the rows before.
            weights: Their relative shares of the rows. None is replaced by the number of rows, so that all rows of
                such datasets are read equally often. With stages, 0 is the weight of a dataset that is not read.
            stages: (row, weights) of later stages, ascending: the weights from that row of the stream on.

        Raises:
            DatasetError: If the datasets have other features, lengths of rows, or tokenizers, or a share is too small.
            ValueError: If there is no dataset, not a weight for each in a stage, a weight is not positive, or stages or
                datasets are not in order.
        """
        all_shares = [
            (row, _stage_shares(datasets, stage_weights, zero=bool(stages)))
            for row, stage_weights in [(0, weights), *stages]
        ]
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
        self.datasets = tuple(datasets)
        self.max_length, self.features = first_dataset.max_length, first_dataset.features
        """The same as those of each dataset."""
        self.stages = tuple(
            Stage(whole_number("the first row of a stage", row), stage_shares)
            for row, stage_shares in all_shares
        )
        """The stages, of which the first begins at row 0."""
        self._check_stages()
        self.shares = self.stages[0].shares
        """The shares of the first stage."""
        rows = np.array([len(dataset) for dataset in datasets])
        self.first_rows = np.cumsum(rows) - rows
        """The number of each dataset's first row, int64[datasets]."""

    def _check_stages(self) -> None:
        """Raises ValueError if stages do not ascend, or datasets are not in the order in which they are first read."""
        rows = [stage.first_row for stage in self.stages]
        if any(row >= next_row for row, next_row in itertools.pairwise(rows)):
            raise ValueError(f"stages must ascend from row 0, but they begin at rows {rows}")
        is_read = np.array([stage.shares for stage in self.stages]) > 0
        first_stages = np.where(is_read.any(axis=0), is_read.argmax(axis=0), len(rows)).tolist()
        for dataset, first_stage in zip(self.datasets, first_stages, strict=True):
            if first_stage == len(rows):
                raise ValueError(f"{dataset.path}: no stage reads it; remove it")
        if first_stages != sorted(first_stages):
            raise ValueError(
                f"datasets must be in the order in which they are first read, but {self.path} are first read in the "
                f"stages {first_stages}"
            )

    @classmethod
    def open(
        cls,
        weights: _Weights,
        *,
        stages: Sequence[tuple[int, _Weights]] = (),
        **options: Any,
    ) -> Mixture:
        """Opens the folders in `weights`, which has their relative shares, and in those of later stages.

        Mixture.open({"web/train": 9, "code/train": 1}, stages=[(900_000, {"web/train": 1, "textbooks/train": 1})])

        Options are those of `Dataset.open`. A stage does not read folders that its weights do not name.
        """
        given = (weights, *(stage_weights for _, stage_weights in stages))
        all_weights = [{normal_folder(path): weight for path, weight in each.items()} for each in given]
        if any(len(each) != len(names) for each, names in zip(given, all_weights, strict=True)):
            raise ValueError(
                f"a folder is repeated: {', '.join(map(str, itertools.chain.from_iterable(given)))}"
            )
        paths = list(dict.fromkeys(itertools.chain.from_iterable(all_weights)))
        first, *later = [[each.get(path, 0) for path in paths] for each in all_weights]
        rows = [row for row, _ in stages]
        datasets = [Dataset.open(path, **options) for path in paths]
        return cls(datasets, first, stages=list(zip(rows, later, strict=True)))

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
        return self.fingerprint_before(self.stages[-1].first_row + 1)

    def fingerprint_before(self, row: int) -> str:
        """Identifies the rows before row `row` of the stream: only the stages that begin before it count."""
        parts = []
        for stage in self.stages:
            if 0 < stage.first_row < row:
                parts.append(f"from {stage.first_row}")
            if stage.first_row < max(row, 1):
                parts += [
                    dataset.fingerprint if share == PERIOD else f"{share}×{dataset.fingerprint}"
                    for share, dataset in zip(stage.shares, self.datasets, strict=True)
                    if share
                ]
        return PLUS.join(parts)

    def __repr__(self) -> str:
        stages = "; ".join(
            (f"from row {stage.first_row} " if stage.first_row else "")
            + ", ".join(
                f"{share / PERIOD:g} of {dataset.path!r}"
                for share, dataset in zip(stage.shares, self.datasets, strict=True)
                if share
            )
            for stage in self.stages
        )
        return f"Mixture({len(self)} rows of {self.max_length} tokens: {stages})"

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


def _stage_shares(
    datasets: Sequence[Dataset], weights: Sequence[float | None], *, zero: bool
) -> tuple[int, ...]:
    """Returns the shares of a stage, which need not read all datasets if `zero`; see `Mixture` for the exceptions."""
    if not datasets or len(weights) != len(datasets):
        raise ValueError(f"{len(weights)} weights for {len(datasets)} datasets; give one for each dataset")
    for dataset, weight in zip(datasets, weights, strict=True):
        if weight is not None and not _is_weight(weight, zero=zero):
            raise ValueError(f"{dataset.path}: its weight is {weight!r:.80}, not a number above 0")
    values = [
        len(dataset) if weight is None else weight for dataset, weight in zip(datasets, weights, strict=True)
    ]
    if not any(values):
        raise ValueError("all weights of a stage are 0; give at least one dataset a weight above 0")
    shares = _shares(values)
    for dataset, value, share in zip(datasets, values, shares, strict=True):
        if value and not share:
            raise DatasetError(
                f"{dataset.path}: its weight is {value:g} of {sum(values):g}, less than one row in {PERIOD}; "
                "increase its weight or remove it"
            )
    return shares


def _is_weight(value: Any, *, zero: bool) -> bool:
    """Whether a value is a finite number above 0, or 0 if `zero`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and (0 < value < math.inf or (zero and value == 0))


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
