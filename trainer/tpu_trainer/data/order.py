"""The order of the rows: a function of (seed, epoch, position), without iterator state.

Each epoch permutes the shards. Host h of H reads every H-th shard; the last shards are divided between hosts so that
all read equally many rows. A host reads its shards in windows of W and permutes the rows of each window. The place of
position p in the infinite stream is computed from the shards' row counts, so a run resumes at any row without reading
the windows before it. All hosts are at the same point of the same epoch at all times. So a run may resume on another
number of hosts; only the windows that were being read are then partly skipped or repeated. tokenmill-reader's `Order`
avoids that, given the former numbers of hosts. Here, each checkpoint would have to record them, and window_dataset.py
would need the rest of the epoch as parts of the former hosts' windows; only its first window can begin in the middle.

The formulas are written once, over `Arrays`: with NumPy in this file, and with TensorFlow operations in
window_dataset.py, for the input pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tpu_trainer.support.errors import UsageError

# Purposes of a permutation, in the upper half of the key's first word.
_SHARDS, _ROWS = 1, 2


def permutation_key(*, seed: int, purpose: int, epoch: Any, index: Any) -> tuple[int, Any]:
    """Returns the two 64-bit words of the Philox key of a permutation."""
    return seed | purpose << 32, epoch * 2**32 + index


def _permutation(n: int, key: tuple[int, int]) -> np.ndarray:
    """Returns a permutation of range(n), int64[n], that is the same on all machines and NumPy versions.

    NEP 19 guarantees the raw output of bit generators across versions, but not that of Generator.permutation. So this
    sorts raw 64-bit keys.
    """
    return np.argsort(np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(n), kind="stable")


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The array operations that the formulas use."""

    xp: Any
    """NumPy, or a module with the same functions."""
    permutation: Callable[[Any, tuple[Any, Any]], Any]
    """Returns a permutation of range(n), int64[n], from n and a `permutation_key`."""
    select: Callable[[Any, Any], Any]
    """Returns the rows of an array that a boolean vector selects."""


NUMPY = Arrays(xp=np, permutation=_permutation, select=lambda array, mask: array[mask])


class Window(NamedTuple):
    """Shards that a host reads together."""

    shards: Any
    """Indices of the shards, int64[k]."""
    rows: Any
    """Indices into the concatenated shards of this host's rows, in the order of delivery, int64[n]."""
    row_ids: Any
    """Indices of the same rows in the split, int64[n]."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in the infinite stream: `offset` rows into window `window` of `epoch`."""

    epoch: int
    window: int
    offset: int


class Order:
    """The infinite, shuffled stream of one host's rows."""

    def __init__(
        self, *, counts: np.ndarray, seed: int, window_shards: int, host: int = 0, hosts: int = 1
    ) -> None:
        """
        Args:
            counts: Rows per shard, int64[shards].
            seed: The seed of the order, in [0, 2**32).
            window_shards: Shards that are read and permuted together.
            host: This host's index, in [0, hosts).
            hosts: Number of hosts.

        Raises:
            UsageError: If there are fewer shards with rows than hosts.
        """
        filled = int(np.count_nonzero(counts))
        if filled < hosts:
            raise UsageError(
                f"{filled} shards with rows for {hosts} hosts: each host needs at least one; prepare the dataset "
                "with a smaller --shard_size, or train on fewer hosts"
            )
        self._counts = np.asarray(counts, dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._filled = np.flatnonzero(self._counts)
        self._total = int(self._counts.sum())
        self._seed = seed
        self.window_shards = window_shards
        """Shards that are read and permuted together."""
        self._host = host
        self._hosts = hosts

    def shards(self, epoch: int) -> np.ndarray:
        """Returns the shards that this host reads in an epoch, in order, int64[n]."""
        return self.pieces(epoch)[:, 0]

    def _before(self, epoch: Any, host: int) -> Any:
        """Returns the rows that `host` reads before `epoch`. All hosts together read all rows in each epoch."""
        return (epoch * self._total + host) // self._hosts

    def pieces(self, epoch: Any, arrays: Arrays = NUMPY) -> Any:
        """Returns this host's part of an epoch, in order: rows of (shard, first row, end row), int64[n, 3]."""
        xp = arrays.xp
        key = permutation_key(seed=self._seed, purpose=_SHARDS, epoch=epoch, index=0)
        order = xp.take(self._filled, arrays.permutation(self._filled.size, key))
        # Deal the shards to the hosts: row h has the shards of host h, padded with empty shards.
        fill = np.zeros(-order.shape[0] % self._hosts, np.int64)
        shards, lengths = (
            xp.transpose(xp.reshape(xp.concatenate([values, fill]), [-1, self._hosts]))
            for values in (order, xp.take(self._counts, order))
        )
        # Each host keeps rows of its shards, in order, up to its quota.
        hosts = np.arange(self._hosts)
        quota = self._before(epoch + 1, hosts) - self._before(epoch, hosts)
        ends = xp.cumsum(lengths, axis=1)
        kept = xp.clip(quota[:, None] - (ends - lengths), 0, lengths)
        # The hosts below their quota take the spare rows of the others, one after the other.
        missing = xp.maximum(quota - ends[:, -1], 0)
        first = xp.sum(missing[: self._host])
        spare = xp.reshape(lengths - kept, [-1])
        before = xp.cumsum(spare) - spare
        firsts, lasts = (
            xp.reshape(kept, [-1]) + xp.clip(row - before, 0, spare)
            for row in (first, first + missing[self._host])
        )
        own = xp.stack([shards[self._host], xp.zeros_like(shards[self._host]), kept[self._host]], axis=1)
        pieces = xp.concatenate([own, xp.stack([xp.reshape(shards, [-1]), firsts, lasts], axis=1)])
        return arrays.select(pieces, pieces[:, 2] > pieces[:, 1])

    def _windows(self, epoch: int) -> list[np.ndarray]:
        pieces = self.pieces(epoch)
        return [pieces[i : i + self.window_shards] for i in range(0, len(pieces), self.window_shards)]

    def locate(self, position: int) -> Place:
        """Returns the place of row `position` of this host's stream."""
        epoch = ((position + 1) * self._hosts - 1 - self._host) // self._total
        position -= self._before(epoch, self._host)
        for index, pieces in enumerate(self._windows(epoch)):
            rows = int((pieces[:, 2] - pieces[:, 1]).sum())
            if position < rows:
                return Place(epoch=epoch, window=index, offset=position)
            position -= rows
        raise AssertionError("unreachable: the windows of an epoch contain all of its rows")

    def windows(self, position: int = 0) -> Iterator[Window]:
        """Yields the windows of the infinite stream from row `position` on."""
        place = self.locate(position)
        epoch, first, offset = place.epoch, place.window, place.offset
        while True:
            for index, pieces in list(enumerate(self._windows(epoch)))[first:]:
                yield self.window(pieces, epoch=epoch, index=index, offset=offset)
                offset = 0
            epoch, first = epoch + 1, 0

    def window(self, pieces: Any, *, epoch: Any, index: Any, offset: Any, arrays: Arrays = NUMPY) -> Window:
        """Returns window `index` of an epoch, made of `pieces`, without its first `offset` rows."""
        xp = arrays.xp
        shards, firsts = pieces[:, 0], pieces[:, 1]
        lengths = pieces[:, 2] - firsts
        key = permutation_key(seed=self._seed, purpose=_ROWS, epoch=epoch, index=index)
        # Permute the indices into the concatenated pieces. Adding an offset per piece gives the other indices.
        rows = arrays.permutation(xp.sum(lengths), key)[offset:]
        before = firsts - (xp.cumsum(lengths) - lengths)
        read = xp.take(self._counts, shards)
        in_window = xp.repeat(before + xp.cumsum(read) - read, lengths)
        in_split = xp.repeat(before + xp.take(self._starts, shards), lengths)
        return Window(
            shards=shards, rows=rows + xp.take(in_window, rows), row_ids=rows + xp.take(in_split, rows)
        )


def host_shards(counts: np.ndarray, *, host: int = 0, hosts: int = 1) -> np.ndarray:
    """Returns the non-empty shards that a host evaluates, in the split's order, int64[n]."""
    return np.flatnonzero(counts)[host::hosts]
