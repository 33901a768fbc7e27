"""The order of the rows: a function of (seed, epoch, position), with no iterator whose state could be lost.

Each epoch permutes the shards; host h of H gets every H-th, and the last ones are shared out so that all hosts have
equally many rows. A host reads its shards in windows of W and permutes the rows of a window. Where position p of the
endless stream lies is arithmetic over the shards' row counts, so a run resumes at any row without reading what comes
before its window. All hosts are in the same place of the same epoch at all times: the number of hosts may change
between two runs, and no more is lost or read again than the windows they were in.

The formulas are written once, over `Arrays`: NumPy here, TensorFlow's operations in window_dataset.py, where the host
that reads the rows computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tpu_trainer.errors import UsageError

# The top half of Philox's key separates its uses here.
_SHARDS, _ROWS = 1, 2


def permutation_key(*, seed: int, purpose: int, epoch: Any, index: Any) -> tuple[int, Any]:
    """The two 64-bit words of Philox's key for one permutation."""
    return seed | purpose << 32, epoch * 2**32 + index


def _permutation(n: int, key: tuple[int, int]) -> np.ndarray:
    """int64[n]: a permutation of range(n) that is the same in every version and on every machine.

    NumPy guarantees the raw output of a bit generator across versions, but not that of Generator.permutation
    (NEP 19): hence an argsort of raw 64-bit keys.
    """
    return np.argsort(np.random.Philox(key=np.array(key, dtype=np.uint64)).random_raw(n), kind="stable")


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """What the formulas compute with.

    Attributes:
      xp: NumPy, or a module with functions of the same names.
      permutation: int64[n] of a number n and a `permutation_key`.
      select: the rows of an array for which a vector of booleans is true.
    """

    xp: Any
    permutation: Callable[[Any, tuple[Any, Any]], Any]
    select: Callable[[Any, Any], Any]


NUMPY = Arrays(xp=np, permutation=_permutation, select=lambda array, mask: array[mask])


class Window(NamedTuple):
    """Shards that are read together, all of them or those of their rows that are this host's.

    `shards` (int64[k]) are numbers of shards; `rows` (int64[n]) are places in the concatenation of these, in the order
    to deliver them; `row_ids` (int64[n]) are the same rows' indices in the whole split.
    """

    shards: Any
    rows: Any
    row_ids: Any


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a position of the endless stream lies: `offset` rows into window `window` of `epoch`."""

    epoch: int
    window: int
    offset: int


class Order:
    """The endless, shuffled stream of one host's rows."""

    def __init__(
        self, *, counts: np.ndarray, seed: int, window_shards: int, host: int = 0, hosts: int = 1
    ) -> None:
        """
        Args:
            counts: int64[shards], the rows of each shard.
            seed: Decides the order, in [0, 2**32).
            window_shards: Shards read and permuted together.
            host: This host's number, in [0, hosts).
            hosts: Hosts that share the split.

        Raises:
            UsageError: A host would get no shard with rows.
        """
        filled = int(np.count_nonzero(counts))
        if filled < hosts:
            raise UsageError(
                f"{filled} shards with rows for {hosts} hosts: each host needs one at least; prepare the dataset "
                "with a smaller --shard_size, or train on fewer hosts"
            )
        self._counts = np.asarray(counts, dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._filled = np.flatnonzero(self._counts)
        self._total = int(self._counts.sum())
        self._seed = seed
        self.window_shards = window_shards
        """Shards read and permuted together."""
        self._host = host
        self._hosts = hosts

    def shards(self, epoch: int) -> np.ndarray:
        """int64[n]: the shards this host reads in epoch `epoch`, in order."""
        return self.pieces(epoch)[:, 0]

    def _before(self, epoch: Any, host: int) -> Any:
        """The rows of `host` in all epochs before `epoch`. Over all hosts they sum up to all rows, `epoch` times."""
        return (epoch * self._total + host) // self._hosts

    def pieces(self, epoch: Any, arrays: Arrays = NUMPY) -> Any:
        """int64[n, 3]: this host's part of an epoch, in order: a shard, its first row, and the one after its last."""
        xp = arrays.xp
        key = permutation_key(seed=self._seed, purpose=_SHARDS, epoch=epoch, index=0)
        order = xp.take(self._filled, arrays.permutation(self._filled.size, key))
        # A row for each host: the shards that are dealt to it, filled up with shards of no rows.
        fill = np.zeros(-order.shape[0] % self._hosts, np.int64)
        shards, lengths = (
            xp.transpose(xp.reshape(xp.concatenate([values, fill]), [-1, self._hosts]))
            for values in (order, xp.take(self._counts, order))
        )
        hosts = np.arange(self._hosts)
        quota = self._before(epoch + 1, hosts) - self._before(epoch, hosts)
        ends = xp.cumsum(lengths, axis=1)
        kept = xp.clip(quota[:, None] - (ends - lengths), 0, lengths)
        # The rows that hosts have too many are, one host after the other, those that the others miss.
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
        """Where row `position` of this host's stream lies."""
        epoch = ((position + 1) * self._hosts - 1 - self._host) // self._total
        position -= self._before(epoch, self._host)
        for index, pieces in enumerate(self._windows(epoch)):
            rows = int((pieces[:, 2] - pieces[:, 1]).sum())
            if position < rows:
                return Place(epoch=epoch, window=index, offset=position)
            position -= rows
        raise AssertionError("unreachable: the epoch's windows hold all its rows")

    def windows(self, position: int = 0) -> Iterator[Window]:
        """The stream from row `position` on, window by window, without end."""
        place = self.locate(position)
        epoch, first, offset = place.epoch, place.window, place.offset
        while True:
            for index, pieces in list(enumerate(self._windows(epoch)))[first:]:
                yield self.window(pieces, epoch=epoch, index=index, offset=offset)
                offset = 0
            epoch, first = epoch + 1, 0

    def window(self, pieces: Any, *, epoch: Any, index: Any, offset: Any, arrays: Arrays = NUMPY) -> Window:
        """Window `index` of an epoch, which consists of `pieces`, without its first `offset` rows."""
        xp = arrays.xp
        shards, firsts = pieces[:, 0], pieces[:, 1]
        lengths = pieces[:, 2] - firsts
        key = permutation_key(seed=self._seed, purpose=_ROWS, epoch=epoch, index=index)
        # Indices of rows in the concatenated pieces, in the order to deliver them. All else is an offset of each piece.
        rows = arrays.permutation(xp.sum(lengths), key)[offset:]
        before = firsts - (xp.cumsum(lengths) - lengths)
        read = xp.take(self._counts, shards)
        in_window = xp.repeat(before + xp.cumsum(read) - read, lengths)
        in_split = xp.repeat(before + xp.take(self._starts, shards), lengths)
        return Window(
            shards=shards, rows=rows + xp.take(in_window, rows), row_ids=rows + xp.take(in_split, rows)
        )


def host_shards(counts: np.ndarray, *, host: int = 0, hosts: int = 1) -> np.ndarray:
    """int64[n]: the shards with rows that host `host` evaluates, in the split's own order."""
    return np.flatnonzero(counts)[host::hosts]
