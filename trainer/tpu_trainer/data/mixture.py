"""Mixes several datasets into one stream of rows: a fixed schedule determines the dataset of each row.

The schedule is periodic, seeded and evenly spread: every stretch of it contains each dataset's share of rows, to
within about one row. So the row at any position is computed directly, and resuming needs no saved state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_trainer.data.dataset import PLUS, Split, open_split
from tpu_trainer.data.order import Order
from tpu_trainer.support.errors import UsageError

PERIOD = 10_000
"""Rows in one period of the schedule. A dataset's share is a whole number of them."""
# A purpose of the Philox key other than those in order.py.
_SCHEDULE = 3
_INPUTS_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The training datasets."""

    splits: tuple[Split, ...]
    """At least one."""
    shares: tuple[int, ...]
    """The rows of each split in a period of the schedule; they sum to `PERIOD`."""

    @property
    def path(self) -> str:
        """The folders, for messages."""
        return ", ".join(split.path for split in self.splits)

    @property
    def max_length(self) -> int:
        """Tokens per row."""
        return self.splits[0].max_length

    @property
    def features(self) -> frozenset[str]:
        """The feature names of each record."""
        return self.splits[0].features

    @property
    def tokenizer_path(self) -> str | None:
        """The folder of the tokenizer of all datasets."""
        return self.splits[0].tokenizer_path

    @property
    def num_rows(self) -> int:
        """Total number of rows."""
        return sum(split.num_rows for split in self.splits)

    @property
    def fingerprint(self) -> str:
        """Identifies the rows and, up to the seed, their order."""
        if len(self.splits) == 1:
            return self.splits[0].fingerprint
        return PLUS.join(
            f"{share}×{split.fingerprint}" for share, split in zip(self.shares, self.splits, strict=True)
        )

    def statistics(self) -> dict[str, Any] | None:
        """Returns the statistics of the rows in the stream.

        Returns:
            With one dataset, the content of its statistics.json. With several, their `token_counts` weighted by the
            shares. None if a dataset has no statistics.
        """
        found = [split.statistics() for split in self.splits]
        if None in found or len(found) == 1:
            return found[0] if len(found) == 1 else None
        counts = sum(
            share / split.num_rows * np.array(statistics["token_counts"], np.float64)
            for share, split, statistics in zip(self.shares, self.splits, found, strict=True)
        )
        return {"token_counts": counts.tolist()}

    def token_counts(self) -> np.ndarray | None:
        """Returns token counts up to a factor, float64[vocab_size]; None if a dataset has no statistics."""
        statistics = self.statistics()
        return None if statistics is None else np.array(statistics["token_counts"], np.float64)


def open_mixture(weights: Mapping[str, float | None], *, tokenizer: str | None = None) -> Mixture:
    """Opens the splits in `weights` and checks that they are compatible.

    Args:
        weights: Maps each folder to its relative share of the rows. None stands for the split's number of rows, so
            that all rows of such splits are read equally often.
        tokenizer: The tokenizer's folder, if it is not the datasets' own.

    Raises:
        UsageError: If a split is incomplete, splits are incompatible, or a share is too small.
    """
    splits = tuple(open_split(path, tokenizer=tokenizer) for path in weights)
    for split in splits[1:]:
        check_same_rows(splits[0], split)
        if split.features != splits[0].features:
            raise UsageError(
                f"{split.path}: records have {', '.join(sorted(split.features))}, but those of {splits[0].path} have "
                f"{', '.join(sorted(splits[0].features))}; prepare both with the same options"
            )
    if sum(split.num_rows for split in splits) >= 2**31:
        raise UsageError("--data.train: the datasets have 2**31 rows or more in total; use fewer datasets")
    values = [split.num_rows if w is None else w for w, split in zip(weights.values(), splits, strict=True)]
    shares = _shares(values)
    for split, value, share in zip(splits, values, shares, strict=True):
        if not share:
            raise UsageError(
                f"--data.train: {split.path} has weight {value:g} of {sum(values):g}, less than one row in {PERIOD}; "
                "increase its weight or remove it"
            )
    return Mixture(splits=splits, shares=shares)


def describe(mixture: Mixture, validation: Split | None) -> list[dict[str, Any]]:
    """Describes the data of a run: one JSON entry per split, with its name, use, share, sizes and sources."""
    shares = [None] if len(mixture.splits) == 1 else [share / PERIOD for share in mixture.shares]
    uses = [(split, "training", share) for split, share in zip(mixture.splits, shares, strict=True)]
    if validation is not None:
        uses.append((validation, "validation", None))
    found = []
    for split, use, share in uses:
        manifest = split.manifest or {}
        totals = manifest.get("totals", {})
        found.append(
            {
                "name": "/".join(split.path.rstrip("/").split("/")[-2:]),
                "use": use,
                "share": share,
                "rows": split.num_rows,
                "max_length": split.max_length,
                "tokens": totals.get("tokens"),
                "documents": totals.get("documents"),
                "fingerprint": split.fingerprint,
                "inputs": [path.rsplit("/", 1)[-1] for path in split.input_paths(_INPUTS_SHOWN)],
                "further_inputs": max(0, split.num_inputs - _INPUTS_SHOWN),
            }
        )
    return found


def check_same_rows(first: Split, other: Split) -> None:
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
        ours, theirs = (split.manifest["tokenizer"]["sha256"] for split in (first, other))
        if ours != theirs:
            raise UsageError(
                f"{other.path}: prepared with another tokenizer than {first.path}; prepare both with the same one"
            )


def _shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Divides `PERIOD` in proportion to `weights` by the largest-remainder method."""
    exact = [weight / math.fsum(weights) * PERIOD for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
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


class MixedOrder:
    """The infinite stream of one host's rows from all datasets of a mixture."""

    def __init__(
        self, mixture: Mixture, *, seed: int, window_shards: int, host: int = 0, hosts: int = 1
    ) -> None:
        """
        Args:
            mixture: The datasets.
            seed: The seed of the order, in [0, 2**32).
            window_shards: Shards of a dataset that are read and permuted together.
            host: This host's index, in [0, hosts).
            hosts: Number of hosts.

        Raises:
            UsageError: If a dataset has fewer shards with rows than there are hosts.
        """
        self.schedule = schedule(mixture.shares, seed=seed)
        """The dataset of each row of a period, int64[PERIOD]."""
        self.orders = []
        """The order of each dataset's rows."""
        rows = np.array([split.num_rows for split in mixture.splits])
        self.first_row_ids = np.cumsum(rows) - rows
        """The index of each dataset's first row among all rows, int64[datasets]."""
        for index, split in enumerate(mixture.splits):
            try:
                order = Order(
                    counts=split.counts,
                    # A seed per dataset: parallel corpora must not be read in the same order.
                    seed=(seed + index * 0x9E3779B9) % 2**32,
                    window_shards=window_shards,
                    host=host,
                    hosts=hosts,
                )
            except UsageError as error:
                raise UsageError(f"{split.path}: {error}") from None
            self.orders.append(order)

    def positions(self, position: int) -> np.ndarray:
        """Returns the number of rows from each dataset before row `position` of the stream, int64[datasets]."""
        periods, offset = divmod(position, PERIOD)
        datasets = len(self.orders)
        return periods * np.bincount(self.schedule, minlength=datasets) + np.bincount(
            self.schedule[:offset], minlength=datasets
        )

    def choices(self, position: int) -> np.ndarray:
        """Returns the datasets of the rows from `position` on, int64[PERIOD]. They repeat after a period."""
        return np.roll(self.schedule, -(position % PERIOD))

    def shards(self, position: int) -> list[tuple[int, int]]:
        """Returns (dataset, shard) of all shards that are open or prefetched at row `position` of the stream."""
        found = []
        for dataset, (order, start) in enumerate(
            zip(self.orders, self.positions(position).tolist(), strict=True)
        ):
            # The current window, the prefetched one, and the one being read.
            for window in itertools.islice(order.windows(start), 3):
                found += [(dataset, shard) for shard in window.shards.tolist()]
        return list(dict.fromkeys(found))

    def rows(self, position: int = 0) -> Iterator[tuple[int, int]]:
        """Yields the stream from row `position` on, as (dataset, index of the row in its split)."""
        streams = [
            itertools.chain.from_iterable(window.row_ids.tolist() for window in order.windows(start))
            for order, start in zip(self.orders, self.positions(position).tolist(), strict=True)
        ]
        for dataset in itertools.cycle(self.choices(position).tolist()):
            yield dataset, next(streams[dataset])
