"""Several datasets as one stream of rows: a fixed schedule says which of them gives the next row.

The schedule is periodic, seeded, and spread evenly: any stretch of it holds every dataset's share of rows, but for a
row or so. So which row stands at a position is arithmetic here, too, and nothing needs to be remembered to resume.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_trainer.data.dataset import Split, open_split
from tpu_trainer.data.order import Order
from tpu_trainer.errors import UsageError

PERIOD = 10_000
"""Rows after which the schedule repeats itself; a dataset's share is a whole number of them."""
# Separates the schedule's use of the seed from those in order.py.
_SCHEDULE = 3


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The datasets to learn from, at least one, and how many of `PERIOD` rows each of them gives."""

    splits: tuple[Split, ...]
    shares: tuple[int, ...]

    @property
    def path(self) -> str:
        """The folders, for messages."""
        return ", ".join(split.path for split in self.splits)

    @property
    def max_length(self) -> int:
        """Tokens in a row."""
        return self.splits[0].max_length

    @property
    def features(self) -> frozenset[str]:
        """The names in each record."""
        return self.splits[0].features

    @property
    def tokenizer_path(self) -> str | None:
        """The folder of the tokenizer that all datasets were made with."""
        return self.splits[0].tokenizer_path

    @property
    def num_rows(self) -> int:
        """Rows in all datasets."""
        return sum(split.num_rows for split in self.splits)

    @property
    def fingerprint(self) -> str:
        """Identifies the rows and their order, but for the seed."""
        if len(self.splits) == 1:
            return self.splits[0].fingerprint
        return " + ".join(
            f"{share}×{split.fingerprint}" for share, split in zip(self.shares, self.splits, strict=True)
        )

    def statistics(self) -> dict[str, Any] | None:
        """What the datasets' statistics.json say of the rows that are read: all of it where there is one dataset, else
        `token_counts`, in proportion to the shares. None where a dataset has none."""
        found = [split.statistics() for split in self.splits]
        if None in found or len(found) == 1:
            return found[0] if len(found) == 1 else None
        counts = sum(
            share / split.num_rows * np.array(statistics["token_counts"], np.float64)
            for share, split, statistics in zip(self.shares, self.splits, found, strict=True)
        )
        return {"token_counts": counts.tolist()}

    def token_counts(self) -> np.ndarray | None:
        """float64[vocab_size]: how often each id occurs, up to a factor; None where a dataset does not say."""
        statistics = self.statistics()
        return None if statistics is None else np.array(statistics["token_counts"], np.float64)


def open_mixture(weights: Mapping[str, float | None], *, tokenizer: str | None = None) -> Mixture:
    """Opens the splits whose folders are the keys of `weights`.

    Args:
        weights: Folder → share of the rows, relative to the others; None: the number of its rows, so that every row of
            such datasets comes equally often.
        tokenizer: The tokenizer's folder, where it is not the one that the datasets bring.

    Raises:
        UsageError: A split is not whole, splits do not fit together, or a share is too small.
    """
    splits = tuple(open_split(path, tokenizer=tokenizer) for path in weights)
    for split in splits[1:]:
        check_same_rows(splits[0], split)
        if split.features != splits[0].features:
            raise UsageError(
                f"{split.path}: records of {', '.join(sorted(split.features))}, but {splits[0].path} has "
                f"{', '.join(sorted(splits[0].features))}; prepare both with the same options"
            )
    if sum(split.num_rows for split in splits) >= 2**31:
        raise UsageError("--data.train: the datasets hold 2**31 rows or more together; train on fewer")
    values = [split.num_rows if w is None else w for w, split in zip(weights.values(), splits, strict=True)]
    shares = _shares(values)
    for split, value, share in zip(splits, values, shares, strict=True):
        if not share:
            raise UsageError(
                f"--data.train: {split.path} has weight {value:g} of {sum(values):g}, less than one row in {PERIOD}; "
                "give it more, or leave it out"
            )
    return Mixture(splits=splits, shares=shares)


def describe(mixture: Mixture, validation: Split | None) -> list[dict[str, Any]]:
    """What a run says of its data, an entry for each split: name, use, share of the rows, sizes, sources."""
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
                "inputs": [entry["path"].rsplit("/", 1)[-1] for entry in manifest.get("inputs", [])[:20]],
            }
        )
    return found


def check_same_rows(first: Split, other: Split) -> None:
    """UsageError where `other` has rows of another length than `first`, or of another tokenizer."""
    if other.max_length != first.max_length:
        raise UsageError(
            f"{other.path}: rows of {other.max_length} tokens, but {first.path} has rows of {first.max_length}; "
            "prepare both with the same --max_length"
        )
    if first.manifest and other.manifest:
        ours, theirs = (split.manifest["tokenizer"]["sha256"] for split in (first, other))
        if ours != theirs:
            raise UsageError(
                f"{other.path}: made with another tokenizer than {first.path}; prepare both with the same one"
            )


def _shares(weights: Sequence[float]) -> tuple[int, ...]:
    """`PERIOD` split in proportion to `weights`: what is left after rounding down goes to the largest remainders."""
    exact = [weight / math.fsum(weights) * PERIOD for weight in weights]
    shares = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for index in by_remainder[: PERIOD - sum(shares)]:
        shares[index] += 1
    return tuple(shares)


def schedule(shares: Sequence[int], *, seed: int) -> np.ndarray:
    """int64[PERIOD]: the dataset that each row of a period is from; dataset d comes shares[d] times, evenly spread."""
    random = np.random.Philox(key=np.array([seed | _SCHEDULE << 32, 0], np.uint64)).random_raw(len(shares))
    phases = (random >> np.uint64(11)).astype(np.float64) / 2**53
    times = [(np.arange(share) + phase) / share for share, phase in zip(shares, phases, strict=True)]
    return np.repeat(np.arange(len(shares)), shares)[np.argsort(np.concatenate(times), kind="stable")]


class MixedOrder:
    """The endless stream of one host's rows from all datasets of a mixture."""

    def __init__(
        self, mixture: Mixture, *, seed: int, window_shards: int, host: int = 0, hosts: int = 1
    ) -> None:
        """
        Args:
            mixture: The datasets.
            seed: Decides the order, in [0, 2**32).
            window_shards: Shards of a dataset that are read and permuted together.
            host: This host's number, in [0, hosts).
            hosts: Hosts that share the datasets.

        Raises:
            UsageError: A dataset has fewer shards than there are hosts.
        """
        self.schedule = schedule(mixture.shares, seed=seed)
        """int64[PERIOD]: the dataset of each position, again and again."""
        self.orders = []
        """The stream of each dataset."""
        rows = np.array([split.num_rows for split in mixture.splits])
        self.first_row_ids = np.cumsum(rows) - rows
        """int64[datasets]: the number that the first row of each dataset has among all rows."""
        for index, split in enumerate(mixture.splits):
            try:
                order = Order(
                    counts=split.counts,
                    # Datasets that are translations of each other must not be read in step.
                    seed=(seed + index * 0x9E3779B9) % 2**32,
                    window_shards=window_shards,
                    host=host,
                    hosts=hosts,
                )
            except UsageError as error:
                raise UsageError(f"{split.path}: {error}") from None
            self.orders.append(order)

    def positions(self, position: int) -> np.ndarray:
        """int64[datasets]: the rows that each dataset has given before row `position` of the stream."""
        periods, offset = divmod(position, PERIOD)
        datasets = len(self.orders)
        return periods * np.bincount(self.schedule, minlength=datasets) + np.bincount(
            self.schedule[:offset], minlength=datasets
        )

    def choices(self, position: int) -> np.ndarray:
        """int64[PERIOD]: the datasets that rows `position` on are from, again and again."""
        return np.roll(self.schedule, -(position % PERIOD))

    def shards(self, position: int) -> list[tuple[int, int]]:
        """(dataset, shard) of those that are read, or read ahead, at row `position` of the stream."""
        found = []
        for dataset, (order, start) in enumerate(
            zip(self.orders, self.positions(position).tolist(), strict=True)
        ):
            # The window in use, the one that waits, and the one that is being read.
            for window in itertools.islice(order.windows(start), 3):
                found += [(dataset, shard) for shard in window.shards.tolist()]
        return list(dict.fromkeys(found))

    def rows(self, position: int = 0) -> Iterator[tuple[int, int]]:
        """The stream from row `position` on: (dataset, index of the row in its split)."""
        streams = [
            itertools.chain.from_iterable(window.row_ids.tolist() for window in order.windows(start))
            for order, start in zip(self.orders, self.positions(position).tolist(), strict=True)
        ]
        for dataset in itertools.cycle(self.choices(position).tolist()):
            yield dataset, next(streams[dataset])
