"""The order of the rows: a function of (seed, epoch, position), with no iterator whose state could be lost.

Each epoch permutes the shards; host h of H gets every H-th. A host reads its shards in windows of W and permutes
the rows of a window. Where position p of the endless stream lies is arithmetic over the shards' row counts, so a
run resumes at any row without reading what comes before its window.
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
    """Shards that are read together.

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
                f"{filled} shards with rows for {hosts} hosts: each host reads its own shards; prepare the dataset "
                "with a smaller --shard_size, or train on fewer hosts"
            )
        self._counts = np.asarray(counts, dtype=np.int64)
        self._starts = np.cumsum(self._counts) - self._counts
        self._filled = np.flatnonzero(self._counts)
        self._seed = seed
        self._window_shards = window_shards
        self._host = host
        self._hosts = hosts

    def shards(self, epoch: int) -> np.ndarray:
        """int64[n]: this host's shards in epoch `epoch`, in order."""
        permutation = _permutation(self._filled.size, seed=self._seed, purpose=_SHARDS, epoch=epoch, index=0)
        return self._filled[permutation][self._host :: self._hosts]

    def _windows(self, epoch: int) -> list[np.ndarray]:
        shards = self.shards(epoch)
        return [shards[i : i + self._window_shards] for i in range(0, shards.size, self._window_shards)]

    def locate(self, position: int) -> Place:
        """Where row `position` of this host's stream lies."""
        epoch = 0
        while position >= (rows := int(self._counts[self.shards(epoch)].sum())):
            position -= rows
            epoch += 1
        for index, shards in enumerate(self._windows(epoch)):
            rows = int(self._counts[shards].sum())
            if position < rows:
                return Place(epoch=epoch, window=index, offset=position)
            position -= rows
        raise AssertionError("unreachable: the epoch's windows hold all its rows")

    def windows(self, position: int = 0) -> Iterator[Window]:
        """The stream from row `position` on, window by window, without end."""
        place = self.locate(position)
        epoch, first, offset = place.epoch, place.window, place.offset
        while True:
            for index, shards in list(enumerate(self._windows(epoch)))[first:]:
                counts = self._counts[shards]
                rows = _permutation(
                    int(counts.sum()), seed=self._seed, purpose=_ROWS, epoch=epoch, index=index
                )[offset:]
                yield _window(shards, counts, self._starts[shards], rows)
                offset = 0
            epoch, first = epoch + 1, 0


def in_sequence(*, counts: np.ndarray, host: int = 0, hosts: int = 1) -> Iterator[Window]:
    """Every row of host `host`'s share once, in the split's own order: for evaluation. A window is one shard."""
    counts = np.asarray(counts, dtype=np.int64)
    starts = np.cumsum(counts) - counts
    for shard in np.flatnonzero(counts)[host::hosts]:
        one = np.array([shard])
        yield _window(one, counts[one], starts[one], np.arange(counts[shard]))


def _window(shards: np.ndarray, counts: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> Window:
    ends = np.cumsum(counts)
    shard = np.searchsorted(ends, rows, side="right")
    row_ids = rows - (ends - counts)[shard] + starts[shard]
    return Window(shards=tuple(int(s) for s in shards), rows=rows, row_ids=row_ids)
