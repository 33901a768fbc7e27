"""The order of the rows: tokenmill-trainer's, as a function of (seed, host, hosts, step).

Each epoch permutes the shards. Host h of H reads every H-th shard; the last shards are divided between hosts so that
all read equally many rows. A host reads its shards in windows and permutes the rows of each window.

If the number of hosts changes within an epoch, the rows that are left of it are divided anew, in the order in which the
former hosts would have read them. The next epoch is as if it had never been otherwise. So no row is lost or repeated.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tokenmill_reader.dataset import Dataset
from tokenmill_reader.errors import DatasetError
from tokenmill_reader.indexes import whole_number
from tokenmill_reader.mixture import PERIOD, Mixture, schedule

# Purposes of a permutation, in the upper half of the key's first word.
_SHARDS, _ROWS = 1, 2
_KEPT_EPOCHS, _KEPT_WINDOWS = 4, 8
_MAX_ROWS, _MAX_EPOCHS = 2**62, 2**32


def _permutation(n: int, *, seed: int, purpose: int, epoch: int, index: int) -> np.ndarray:
    """Returns a permutation of range(n), int64[n], that is the same on all machines and NumPy versions."""
    key = np.array([seed | purpose << 32, epoch * 2**32 + index], np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(n), kind="stable")


class Change(NamedTuple):
    """From row `position` of all hosts' rows on, there are `hosts` hosts."""

    position: int
    hosts: int


class _Segment(NamedTuple):
    """Rows `first` to `end` of the permuted rows of a window."""

    pieces: np.ndarray
    """Shard, first row and end row of each piece of the window, int64[pieces, 3]."""
    index: int
    """The window's number in its host's epoch."""
    first: int
    end: int


class Order:
    """The rows that one host reads in each step.

    order = Order(dataset, seed=0, batch_size=256)
    dataset[order.rows(1000)]  # the batch of step 1000
    """

    def __init__(
        self,
        data: Dataset | Mixture,
        *,
        seed: int = 0,
        batch_size: int,
        window: int = 16,
        host: int = 0,
        hosts: int = 1,
        changes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """
        Args:
            data: The rows.
            seed: The seed of the order, in [0, 2**32).
            batch_size: Rows in a step, over all hosts.
            window: Shards of a dataset that are read and permuted together.
            host: This host's index, in [0, hosts).
            hosts: Number of hosts.
            changes: The former numbers of hosts, if it changed: (step, hosts) with the first step of each, ascending
                from step 0. `hosts` of the last one must be the present number.

        Raises:
            DatasetError: If a dataset has fewer shards with rows than there are hosts.
            ValueError: If the arguments contradict each other.
            TypeError: If one is not a whole number.
        """
        seed, batch_size, window, host, hosts = (
            whole_number(name, value)
            for name, value in (
                *(("seed", seed), ("batch_size", batch_size), ("window", window)),
                *(("host", host), ("hosts", hosts)),
            )
        )
        changes = [
            (whole_number("the step of a change", step), whole_number("hosts of a change", count))
            for step, count in changes or [(0, hosts)]
        ]
        steps = [step for step, _ in changes]
        if steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)):
            raise ValueError(f"changes must ascend from step 0, but its steps are {steps}")
        if changes[-1][1] != hosts or not 0 <= host < hosts or window < 1 or not 0 <= seed < 2**32:
            raise ValueError(
                f"host {host} of {hosts}, window {window}, seed {seed}, changes {changes}: out of range"
            )
        if batch_size < 1 or any(count < 1 or batch_size % count for _, count in changes):
            raise ValueError(f"batch_size {batch_size} is not a multiple of the number of hosts in {changes}")
        self.seed, self.batch_size, self.window = seed, batch_size, window
        self.host, self.hosts, self.changes = host, hosts, tuple(changes)
        datasets, shares = ((data,), (PERIOD,)) if isinstance(data, Dataset) else (data.datasets, data.shares)
        self._schedule = schedule(shares, seed=seed)
        self._first_rows = [0] if isinstance(data, Dataset) else data.first_rows.tolist()
        self._per_period = np.bincount(self._schedule, minlength=len(datasets))
        self._streams = []
        most = max(count for _, count in changes)
        read = np.zeros((len(changes), len(datasets)), np.int64)  # rows of each dataset before each change
        for number, ((start, was), (end, _)) in enumerate(itertools.pairwise(changes)):
            before, after = (self._before(step * (batch_size // was)) for step in (start, end))
            read[number + 1] = read[number] + (after - before) * was
        began = self._before(changes[-1][0] * (batch_size // hosts))
        self._offsets = (read[-1] + host) // hosts - began
        for index, dataset in enumerate(datasets):
            fewest = int(np.count_nonzero(dataset.counts))
            if fewest < most:
                raise DatasetError(
                    f"{dataset.path}: {fewest} shards with rows for {most} hosts: each host needs at least one; "
                    "prepare the dataset with a smaller --shard_size, or use fewer hosts"
                )
            self._streams.append(
                _Stream(
                    dataset.counts,
                    # A seed per dataset: parallel corpora must not be read in the same order.
                    seed=(seed + index * 0x9E3779B9) % 2**32,
                    window=window,
                    host=host,
                    changes=[
                        Change(int(position), count)
                        for position, (_, count) in zip(read[:, index], changes, strict=True)
                    ],
                )
            )

    def rows(self, step: int) -> np.ndarray:
        """Returns the numbers of the rows that this host reads in a step, int64[batch_size // hosts].

        Raises:
            ValueError: If the step is negative, before the last change, or beyond the last epoch.
            TypeError: If it is not a whole number.
        """
        step = whole_number("step", step)
        if step < self.changes[-1][0]:
            raise ValueError(f"step {step} is before the order begins, at step {self.changes[-1][0]}")
        count = self.batch_size // self.hosts
        if step * self.batch_size >= _MAX_ROWS:
            raise ValueError(f"step {step} is beyond the order's {_MAX_ROWS // self.batch_size} steps")
        first = step * count
        if len(self._streams) == 1:
            return self._streams[0].rows(first + int(self._offsets[0]), count)
        of = self._schedule[(first + np.arange(count)) % PERIOD]
        found = np.empty(count, np.int64)
        before = self._before(first) + self._offsets
        for index, stream in enumerate(self._streams):
            own = np.flatnonzero(of == index)
            found[own] = stream.rows(int(before[index]), own.size) + self._first_rows[index]
        return found

    def _before(self, position: int) -> np.ndarray:
        """Returns the rows from each dataset before row `position` of a host's stream, int64[datasets]."""
        periods, offset = divmod(position, PERIOD)
        return periods * self._per_period + np.bincount(
            self._schedule[:offset], minlength=self._per_period.size
        )


class _Stream:
    """The infinite stream of one host's rows of one dataset."""

    def __init__(
        self, counts: np.ndarray, *, seed: int, window: int, host: int, changes: Sequence[Change]
    ) -> None:
        self._counts, self._seed, self._window = np.asarray(counts, np.int64), seed, window
        self._starts = np.cumsum(self._counts) - self._counts
        self._filled = np.flatnonzero(self._counts)
        self._total = int(self._counts.sum())
        self._host, self._hosts = host, changes[-1].hosts
        self._changes = changes
        self._epochs: OrderedDict[int, tuple[list[_Segment], np.ndarray]] = OrderedDict()
        self._windows: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def rows(self, position: int, count: int) -> np.ndarray:
        """Returns rows `position` to `position + count` of the stream, int64[count]."""
        parts = []
        while count:
            epoch = ((position + 1) * self._hosts - 1 - self._host) // self._total
            if epoch >= _MAX_EPOCHS:
                raise ValueError(f"row {position} of a host is in epoch {epoch}; an order has {_MAX_EPOCHS}")
            segments, ends = _cached(self._epochs, epoch, _KEPT_EPOCHS, lambda: self._epoch(epoch))  # noqa: B023
            offset = position - self._epoch_start(epoch)
            number = int(np.searchsorted(ends, offset, side="right"))
            segment = segments[number]
            offset -= int(ends[number]) - (segment.end - segment.first)
            rows = _cached(
                self._windows,
                (epoch, number),
                _KEPT_WINDOWS,
                lambda: self._window_rows(epoch, segment),  # noqa: B023
            )[offset : offset + count]
            parts.append(rows)
            position, count = position + rows.size, count - rows.size
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _epoch_start(self, epoch: int) -> int:
        """Returns the position in this host's stream of the first row that it reads of an epoch."""
        return _share(max(epoch * self._total, self._changes[-1].position), self._host, self._hosts)

    def _epoch(self, epoch: int) -> tuple[list[_Segment], np.ndarray]:
        """Returns what this host reads in an epoch, and where each segment ends, int64[segments]."""
        within = [c for c in self._changes if c.position // self._total == epoch and c.position % self._total]
        first = next(
            (c for c in reversed(self._changes) if c.position <= epoch * self._total), self._changes[0]
        )
        if not within:
            segments = self._plan(epoch, self._host, self._hosts)
        else:
            plans = [self._plan(epoch, host, first.hosts) for host in range(first.hosts)]
            position, hosts = epoch * self._total, first.hosts
            for change in within:
                left = []
                for host, plan in enumerate(plans):
                    left += _cut(
                        plan, _share(change.position, host, hosts) - _share(position, host, hosts), None
                    )
                position, hosts, plans, taken = change.position, change.hosts, [], 0
                for host in range(hosts):
                    quota = _share((epoch + 1) * self._total, host, hosts) - _share(position, host, hosts)
                    plans.append(_cut(left, taken, taken + quota))
                    taken += quota
            segments = plans[self._host]
        return segments, np.cumsum([segment.end - segment.first for segment in segments])

    def _plan(self, epoch: int, host: int, hosts: int) -> list[_Segment]:
        """Returns what a host reads in an epoch without changes."""
        order = self._filled[
            _permutation(self._filled.size, seed=self._seed, purpose=_SHARDS, epoch=epoch, index=0)
        ]
        # Deal the shards to the hosts: row h has the shards of host h, padded with empty shards.
        fill = np.zeros(-order.size % hosts, np.int64)
        shards, lengths = (
            np.concatenate([values, fill]).reshape(-1, hosts).T for values in (order, self._counts[order])
        )
        # Each host keeps rows of its shards, in order, up to its quota.
        quota = np.array(
            [
                _share((epoch + 1) * self._total, h, hosts) - _share(epoch * self._total, h, hosts)
                for h in range(hosts)
            ]
        )
        ends = np.cumsum(lengths, axis=1)
        kept = np.clip(quota[:, None] - (ends - lengths), 0, lengths)
        # The hosts below their quota take the spare rows of the others, one after the other.
        missing = np.maximum(quota - ends[:, -1], 0)
        first = missing[:host].sum()
        spare = (lengths - kept).reshape(-1)
        before = np.cumsum(spare) - spare
        firsts, lasts = (
            kept.reshape(-1) + np.clip(row - before, 0, spare) for row in (first, first + missing[host])
        )
        own = np.stack([shards[host], np.zeros_like(shards[host]), kept[host]], axis=1)
        pieces = np.concatenate([own, np.stack([shards.reshape(-1), firsts, lasts], axis=1)])
        pieces = pieces[pieces[:, 2] > pieces[:, 1]]
        windows = [pieces[i : i + self._window] for i in range(0, len(pieces), self._window)]
        return [
            _Segment(window, index, 0, int((window[:, 2] - window[:, 1]).sum()))
            for index, window in enumerate(windows)
        ]

    def _window_rows(self, epoch: int, segment: _Segment) -> np.ndarray:
        """Returns the numbers of a segment's rows, in the order of reading, int64[rows]."""
        shards, firsts, lasts = segment.pieces.T
        lengths = lasts - firsts
        rows = _permutation(
            int(lengths.sum()), seed=self._seed, purpose=_ROWS, epoch=epoch, index=segment.index
        )
        # The permutation is of the indices into the concatenated pieces.
        offsets = np.repeat(self._starts[shards] + firsts - (np.cumsum(lengths) - lengths), lengths)
        rows = rows[segment.first : segment.end]
        return rows + offsets[rows]


def _share(rows: int, host: int, hosts: int) -> int:
    """Returns how many of the first `rows` rows of all hosts a host reads. Hosts differ by one row at most."""
    return (rows + host) // hosts


def _cut(segments: list[_Segment], first: int, end: int | None) -> list[_Segment]:
    """Returns rows `first` to `end` of a list of segments."""
    found, position = [], 0
    for segment in segments:
        size = segment.end - segment.first
        low = max(first - position, 0)
        high = size if end is None else min(end - position, size)
        if low < high:
            found.append(segment._replace(first=segment.first + low, end=segment.first + high))
        position += size
    return found


def _cached(cache: OrderedDict[Any, Any], key: Any, kept: int, make: Callable[[], Any]) -> Any:
    if key not in cache:
        cache[key] = make()
        if len(cache) > kept:
            cache.popitem(last=False)
    return cache[key]
