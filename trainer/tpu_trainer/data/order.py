"""The order of the rows: a function of (seed, epoch, position), with no iterator whose state could be lost.

Each epoch permutes the shards; host h of H gets every H-th, and the last ones are shared out so that all hosts have
equally many rows. A host reads its shards in windows of W and permutes the rows of a window. Where position p of the
endless stream lies is arithmetic over the shards' row counts, so a run resumes at any row without reading what comes
before its window. All hosts are in the same place of the same epoch at all times: the number of hosts may change
between two runs, and no more is lost or read again than the windows they were in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tpu_trainer.errors import UsageError

# The top half of Philox's key separates its uses here.
_SHARDS, _ROWS = 1, 2


def _permutation(n: int, *, seed: int, purpose: int, epoch: int, index: int) -> np.ndarray:
    """int64[n]: a permutation of range(n) that is the same in every version and on every machine.

    NumPy guarantees the raw output of a bit generator across versions, but not that of Generator.permutation
    (NEP 19): hence an argsort of raw 64-bit keys.
    """
    key = np.array([seed | purpose << 32, epoch << 32 | index], dtype=np.uint64)
    return np.argsort(np.random.Philox(key=key).random_raw(n), kind="stable")


@dataclass(frozen=True, kw_only=True)
class Window:
    """Shards that are read together, all of them or those of their rows that are this host's.

    `rows` (int64[n]) are places in the concatenation of the window's shards, in the order to deliver them;
    `row_ids` (int64[n]) are the same rows' indices in the whole split.
    """

    shards: tuple[int, ...]
    rows: np.ndarray
    row_ids: np.ndarray


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
        self._window_shards = window_shards
        self._host = host
        self._hosts = hosts

    def shards(self, epoch: int) -> np.ndarray:
        """int64[n]: the shards this host reads in epoch `epoch`, in order."""
        return self._pieces(epoch)[:, 0]

    def _before(self, epoch: int) -> int:
        """This host's rows in all epochs before `epoch`. Over all hosts they sum up to all rows, `epoch` times."""
        return (epoch * self._total + self._host) // self._hosts

    def _pieces(self, epoch: int) -> np.ndarray:
        """int64[n, 3]: this host's part of an epoch, in order: a shard, its first row, and the one after its last."""
        order = self._filled[
            _permutation(self._filled.size, seed=self._seed, purpose=_SHARDS, epoch=epoch, index=0)
        ]
        whole = np.stack([order, np.zeros_like(order), self._counts[order]], axis=1)
        if self._hosts == 1:
            return whole
        dealt, spare, wanted = [], [], []
        for host in range(self._hosts):
            quota = ((epoch + 1) * self._total + host) // self._hosts
            quota -= (epoch * self._total + host) // self._hosts
            kept, rest, missing = _cut(whole[host :: self._hosts], quota)
            dealt.append(kept)
            spare.append(rest)
            wanted.append(missing)
        pool = np.concatenate(spare)
        for missing in wanted[: self._host]:
            _, pool, _ = _cut(pool, missing)
        taken, _, _ = _cut(pool, wanted[self._host])
        return np.concatenate([dealt[self._host], taken])

    def _windows(self, epoch: int) -> list[np.ndarray]:
        pieces = self._pieces(epoch)
        return [pieces[i : i + self._window_shards] for i in range(0, len(pieces), self._window_shards)]

    def locate(self, position: int) -> Place:
        """Where row `position` of this host's stream lies."""
        epoch = ((position + 1) * self._hosts - 1 - self._host) // self._total
        position -= self._before(epoch)
        for index, pieces in enumerate(self._windows(epoch)):
            rows = _rows_of(pieces)
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
                rows = _permutation(
                    _rows_of(pieces), seed=self._seed, purpose=_ROWS, epoch=epoch, index=index
                )[offset:]
                yield self._window(pieces, rows)
                offset = 0
            epoch, first = epoch + 1, 0

    def _window(self, pieces: np.ndarray, rows: np.ndarray) -> Window:
        """The window whose pieces, one after the other, are delivered in the order of `rows`."""
        shards, firsts = pieces[:, 0], pieces[:, 1]
        ends = np.cumsum(pieces[:, 2] - firsts)
        piece = np.searchsorted(ends, rows, side="right")
        slots = rows - np.concatenate([[0], ends])[piece] + firsts[piece]
        read = self._counts[shards]
        return Window(
            shards=tuple(shards.tolist()),
            rows=(np.cumsum(read) - read)[piece] + slots,
            row_ids=self._starts[shards][piece] + slots,
        )


def _rows_of(pieces: np.ndarray) -> int:
    return int((pieces[:, 2] - pieces[:, 1]).sum())


def _cut(pieces: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The first `rows` rows of `pieces` and the rest, a piece cut in two if need be; and how many rows are missing."""
    ends = np.cumsum(pieces[:, 2] - pieces[:, 1])
    whole = int(np.searchsorted(ends, rows, side="right"))
    taken = rows - (int(ends[whole - 1]) if whole else 0)
    if whole == len(pieces):
        return pieces, pieces[:0], taken
    shard, first, last = pieces[whole]
    head = np.array([[shard, first, first + taken]] if taken else np.empty((0, 3)), np.int64)
    tail = np.array([[shard, first + taken, last]], np.int64)
    return np.concatenate([pieces[:whole], head]), np.concatenate([tail, pieces[whole + 1 :]]), 0


def in_sequence(*, counts: np.ndarray, host: int = 0, hosts: int = 1) -> Iterator[Window]:
    """Every row of host `host`'s share once, in the split's own order: for evaluation. A window is one shard."""
    counts = np.asarray(counts, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    for shard in np.flatnonzero(counts)[host::hosts].tolist():
        rows = np.arange(counts[shard])
        yield Window(shards=(shard,), rows=rows, row_ids=starts[shard] + rows)
