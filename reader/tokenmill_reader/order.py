"""The order of the rows: tokenmill-trainer's, as a function of (seed, host, hosts, step).

Each epoch permutes the shards. Host h of H reads every H-th shard; the last shards are divided between hosts so that
all read equally many rows. A host reads its shards in windows and permutes the rows of each window.

If the number of hosts changes within an epoch, its remaining rows are divided again, in the order in which the
former hosts would have read them. Later epochs do not depend on the former numbers. So no row is lost or repeated.

The stages of a mixture only change how often the next row is one of a dataset, not which row of it. So each of its rows
is read once in an epoch, over any stages, and the rows before a stage do not depend on it.
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
_MAX_CACHED_EPOCHS, _MAX_CACHED_WINDOWS = 4, 8
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
    """Rows `first_row` to `end` of the permuted rows of a window."""

    pieces: np.ndarray
    """Shard, first row and end row of each piece of the window, int64[pieces, 3]."""
    index: int
    """The window's number in its host's epoch."""
    first_row: int
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
        self.seed, self.batch_size = whole_number("seed", seed), whole_number("batch_size", batch_size)
        self.window, self.host = whole_number("window", window), whole_number("host", host)
        self.hosts = whole_number("hosts", hosts)
        self.changes = tuple(
            (whole_number("the step of a change", step), whole_number("hosts of a change", count))
            for step, count in changes or [(0, self.hosts)]
        )
        self._check_arguments()
        self._described_data = repr(data)
        mixture = Mixture([data], [None]) if isinstance(data, Dataset) else data
        datasets = mixture.datasets
        self._check_shards(datasets)
        self._stages = [
            _Stage(
                -(-stage.first_row // self.batch_size), schedule(stage.shares, seed=self.seed), len(datasets)
            )
            for stage in mixture.stages
        ]
        self._first_rows = mixture.first_rows.tolist()
        last_change = self.changes[-1][0]
        rows_read = np.stack([self.rows_read(step) for step, _ in self.changes])
        own_rows = self._host_rows(last_change, self.batch_size // self.hosts)
        self._offsets = (rows_read[-1] + self.host) // self.hosts - own_rows
        self._streams = [
            _Stream(
                dataset.counts,
                # A seed per dataset: parallel corpora must not be read in the same order.
                seed=(self.seed + index * 0x9E3779B9) % 2**32,
                window=self.window,
                host=self.host,
                changes=[
                    Change(int(position), count)
                    for position, (_, count) in zip(rows_read[:, index], self.changes, strict=True)
                ],
            )
            for index, dataset in enumerate(datasets)
        ]

    def __repr__(self) -> str:
        host = f", host {self.host} of {self.hosts}" if self.hosts > 1 else ""
        changes = f", changes={self.changes}" if len(self.changes) > 1 else ""
        return (
            f"Order({self._described_data}, seed={self.seed}, batch_size={self.batch_size}, window={self.window}{host}"
            f"{changes})"
        )

    def _check_arguments(self) -> None:
        """Raises ValueError if the arguments contradict each other."""
        changes, batch_size = list(self.changes), self.batch_size
        steps = [step for step, _ in changes]
        if steps[0] != 0 or any(step >= next_step for step, next_step in itertools.pairwise(steps)):
            raise ValueError(f"changes must ascend from step 0, but its steps are {steps}")
        is_host = changes[-1][1] == self.hosts and 0 <= self.host < self.hosts
        if not is_host or self.window < 1 or not 0 <= self.seed < 2**32:
            raise ValueError(
                f"host {self.host} of {self.hosts}, window {self.window}, seed {self.seed}, changes {changes}: out of "
                "range"
            )
        if batch_size < 1 or any(count < 1 or batch_size % count for _, count in changes):
            raise ValueError(f"batch_size {batch_size} is not a multiple of the number of hosts in {changes}")

    def _check_shards(self, datasets: Sequence[Dataset]) -> None:
        """Raises DatasetError if a dataset has fewer shards with rows than there are or were hosts."""
        max_hosts = max(count for _, count in self.changes)
        for dataset in datasets:
            shards = int(np.count_nonzero(dataset.counts))
            if shards < max_hosts:
                raise DatasetError(
                    f"{dataset.path}: {shards} shards with rows for {max_hosts} hosts: each host needs at least one; "
                    "prepare the dataset with a smaller --shard_size, or use fewer hosts"
                )

    def rows_read(self, step: int) -> np.ndarray:
        """Returns how many rows of each dataset all hosts read in the steps before `step`, int64[datasets].

        Divided by the numbers of rows in the datasets, these are their epochs.
        """
        rows = np.zeros(len(self._first_rows), np.int64)
        ends = [start for start, _ in self.changes[1:]] + [step]
        for (start, hosts), end in zip(self.changes, ends, strict=True):
            before, after = (
                self._host_rows(min(each, step), self.batch_size // hosts) for each in (start, end)
            )
            rows += (after - before) * hosts
        return rows

    def _host_rows(self, step: int, count: int) -> np.ndarray:
        """Returns the rows of each dataset in the steps before `step` of `count` rows each, int64[datasets]."""
        rows = np.zeros(len(self._first_rows), np.int64)
        ends = [stage.first_step for stage in self._stages[1:]] + [step]
        for stage, end in zip(self._stages, ends, strict=True):
            before, after = (stage.rows_before(min(each, step) * count) for each in (stage.first_step, end))
            rows += after - before
        return rows

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
        start = step * count
        if len(self._streams) == 1:
            return self._streams[0].rows(start + int(self._offsets[0]), count)
        stage = next(each for each in reversed(self._stages) if each.first_step <= step)
        dataset_index = stage.schedule[(start + np.arange(count)) % PERIOD]
        row_numbers = np.empty(count, np.int64)
        rows_before = self._host_rows(step, count) + self._offsets
        for index, stream in enumerate(self._streams):
            positions = np.flatnonzero(dataset_index == index)
            row_numbers[positions] = (
                stream.rows(int(rows_before[index]), positions.size) + self._first_rows[index]
            )
        return row_numbers


class _Stage:
    """A stage of a mixture from step `first_step` on."""

    def __init__(self, first_step: int, schedule: np.ndarray, datasets: int) -> None:
        self.first_step, self.schedule = first_step, schedule
        self._per_period = np.bincount(schedule, minlength=datasets)

    def rows_before(self, position: int) -> np.ndarray:
        """Returns the rows of each dataset before row `position` of a host of this stage alone, int64[datasets]."""
        periods, offset = divmod(position, PERIOD)
        return periods * self._per_period + np.bincount(
            self.schedule[:offset], minlength=self._per_period.size
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
            segments, ends = _cached(self._epochs, epoch, _MAX_CACHED_EPOCHS, lambda: self._epoch(epoch))  # noqa: B023
            offset = position - self._epoch_start(epoch)
            segment_index = int(np.searchsorted(ends, offset, side="right"))
            segment = segments[segment_index]
            offset -= int(ends[segment_index]) - (segment.end - segment.first_row)
            rows = _cached(
                self._windows,
                (epoch, segment_index),
                _MAX_CACHED_WINDOWS,
                lambda: self._window_rows(epoch, segment),  # noqa: B023
            )[offset : offset + count]
            parts.append(rows)
            position, count = position + rows.size, count - rows.size
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _epoch_start(self, epoch: int) -> int:
        """Returns the position in this host's stream of the first row that it reads of an epoch."""
        return _share(max(epoch * self._total, self._changes[-1].position), self._host, self._hosts)

    def _epoch(self, epoch: int) -> tuple[list[_Segment], np.ndarray]:
        """Returns the segments that this host reads in an epoch, and the end of each, int64[segments]."""
        epoch_changes = [
            change
            for change in self._changes
            if change.position // self._total == epoch and change.position % self._total
        ]
        first_change = next(
            (change for change in reversed(self._changes) if change.position <= epoch * self._total),
            self._changes[0],
        )
        if not epoch_changes:
            segments = self._plan(epoch, self._host, self._hosts)
        else:
            plans = [self._plan(epoch, host, first_change.hosts) for host in range(first_change.hosts)]
            position, hosts = epoch * self._total, first_change.hosts
            for change in epoch_changes:
                remaining = []
                for host, plan in enumerate(plans):
                    remaining += _slice_segments(
                        plan, _share(change.position, host, hosts) - _share(position, host, hosts), None
                    )
                position, hosts, plans, assigned = change.position, change.hosts, [], 0
                for host in range(hosts):
                    quota = _share((epoch + 1) * self._total, host, hosts) - _share(position, host, hosts)
                    plans.append(_slice_segments(remaining, assigned, assigned + quota))
                    assigned += quota
            segments = plans[self._host]
        return segments, np.cumsum([segment.end - segment.first_row for segment in segments])

    def _plan(self, epoch: int, host: int, hosts: int) -> list[_Segment]:
        """Returns the segments that a host reads in an epoch without changes."""
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
                _share((epoch + 1) * self._total, other_host, hosts)
                - _share(epoch * self._total, other_host, hosts)
                for other_host in range(hosts)
            ]
        )
        ends = np.cumsum(lengths, axis=1)
        own_counts = np.clip(quota[:, None] - (ends - lengths), 0, lengths)
        # The hosts below their quota take the spare rows of the others, one after the other.
        missing = np.maximum(quota - ends[:, -1], 0)
        spare_start = missing[:host].sum()
        spare = (lengths - own_counts).reshape(-1)
        spare_before = np.cumsum(spare) - spare
        piece_starts, piece_ends = (
            own_counts.reshape(-1) + np.clip(row - spare_before, 0, spare)
            for row in (spare_start, spare_start + missing[host])
        )
        own_pieces = np.stack([shards[host], np.zeros_like(shards[host]), own_counts[host]], axis=1)
        pieces = np.concatenate(
            [own_pieces, np.stack([shards.reshape(-1), piece_starts, piece_ends], axis=1)]
        )
        pieces = pieces[pieces[:, 2] > pieces[:, 1]]
        windows = [pieces[start : start + self._window] for start in range(0, len(pieces), self._window)]
        return [
            _Segment(window, index, 0, int((window[:, 2] - window[:, 1]).sum()))
            for index, window in enumerate(windows)
        ]

    def _window_rows(self, epoch: int, segment: _Segment) -> np.ndarray:
        """Returns the numbers of a segment's rows, in the order of reading, int64[rows]."""
        shards, starts, ends = segment.pieces.T
        lengths = ends - starts
        rows = _permutation(
            int(lengths.sum()), seed=self._seed, purpose=_ROWS, epoch=epoch, index=segment.index
        )
        # The permutation is of the indices into the concatenated pieces.
        offsets = np.repeat(self._starts[shards] + starts - (np.cumsum(lengths) - lengths), lengths)
        rows = rows[segment.first_row : segment.end]
        return rows + offsets[rows]


def _share(rows: int, host: int, hosts: int) -> int:
    """Returns how many of the first `rows` rows of all hosts a host reads. Hosts differ by one row at most."""
    return (rows + host) // hosts


def _slice_segments(segments: list[_Segment], start: int, end: int | None) -> list[_Segment]:
    """Returns rows `start` to `end` of a list of segments."""
    slices, position = [], 0
    for segment in segments:
        size = segment.end - segment.first_row
        low = max(start - position, 0)
        high = size if end is None else min(end - position, size)
        if low < high:
            slices.append(segment._replace(first_row=segment.first_row + low, end=segment.first_row + high))
        position += size
    return slices


def _cached(cache: OrderedDict[Any, Any], key: Any, max_entries: int, make: Callable[[], Any]) -> Any:
    if key not in cache:
        cache[key] = make()
        if len(cache) > max_entries:
            cache.popitem(last=False)
    return cache[key]
