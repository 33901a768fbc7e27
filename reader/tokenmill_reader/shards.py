"""Opens the shards of a split, and keeps those that are in use open, with the places of their records."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tokenmill_reader.description import Description, check_size
from tokenmill_reader.errors import REMEDY, DatasetError
from tokenmill_reader.format.names import offsets_name
from tokenmill_reader.framing import Frames, index_frames, parse_offsets

_OPEN_LOCAL = 128  # each has two file descriptors
_READ_AHEAD_THREADS = 4
_MAX_CACHED_OFFSETS = 64
# A remote shard is read whole at once or after so many single reads of it, because many requests are slower.
_SINGLE_READS = 8
_SINGLE_SHARE = 8  # at most 1/8 of the shard
_MAX_GAP = 64 << 10  # ranges that are closer together are read by one request

_log = logging.getLogger(__name__)


class Shard(NamedTuple):
    """An open shard."""

    data: np.ndarray
    """The file, uint8[bytes]."""
    offsets: np.ndarray
    """The places of the records' frames, and the file's size: int64[records + 1]."""
    stamp: tuple[int, ...] | None
    """See `Folder.stamp`."""


class Shards:
    """The shards of a split. May be used by several threads, forked and pickled."""

    def __init__(self, description: Description, *, cache_bytes: int) -> None:
        """
        Args:
            description: The split.
            cache_bytes: Bytes of shards that are kept in memory, if they are not local.
        """
        self._description = description
        self._cache_bytes = cache_bytes
        self._min_open = _OPEN_LOCAL if description.folder.is_local else 0
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Future[Shard]] = OrderedDict()
        self._single_reads: OrderedDict[int, _SingleReads] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_description", "_cache_bytes", "_min_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def get(self, shard: int) -> Shard:
        """Opens a shard.

        Raises:
            DatasetError: If it is missing, or differs from its name or the manifest.
        """
        while True:
            future, is_ours = self._claim(shard)
            if is_ours:
                self._load(shard, future)
            opened = future.result()
            if is_ours or opened.stamp == self._stamp(shard):
                return opened
            # Reading a mapped file that has shrunk would end the process with SIGBUS.
            with self._lock:
                if self._open.get(shard) is future:
                    del self._open[shard]

    def _stamp(self, shard: int) -> tuple[int, ...] | None:
        """Returns the stamp of a shard's file. Raises DatasetError if it is missing."""
        description = self._description
        try:
            return description.folder.stamp(description.names[shard])
        except FileNotFoundError as error:
            path = f"{description.folder.path}/{description.names[shard]}"
            raise DatasetError(f"{path}: missing; {REMEDY}") from error

    def frames(self, shard: int, records: np.ndarray) -> Frames:
        """Reads records of a shard: of a remote one that is not open yet, if they are few, only these.

        Args:
            shard: Its number.
            records: The numbers of the records in it, int64[records]; at least one.

        Raises:
            DatasetError: As `get` does.
        """
        offsets = self._single_offsets(shard, records)
        if offsets is not None:
            return self._read_single(shard, offsets[records], offsets[records + 1])
        data, offsets, _ = self.get(shard)
        return Frames(data, offsets[records], offsets[records + 1])

    def read_ahead(self, shards: Iterable[int]) -> None:
        """Opens shards in the background, if they are not local. Errors are raised when a shard is used."""
        if self._description.folder.is_local:
            return
        for shard in shards:
            future, is_ours = self._claim(shard)
            if is_ours:
                with self._lock:
                    self._pool = self._pool or ThreadPoolExecutor(_READ_AHEAD_THREADS, "tokenmill-read-ahead")
                self._pool.submit(self._load, shard, future)

    def _claim(self, shard: int) -> tuple[Future[Shard], bool]:
        """Returns the future of a shard, and whether the caller must load it."""
        self._reset_after_fork()
        with self._lock:
            future = self._open.get(shard)
            if future is not None:
                self._open.move_to_end(shard)
                return future, False
            future = self._open[shard] = Future()
            for oldest in list(self._open):
                if self._fits() or oldest == shard:
                    break
                del self._open[oldest]  # its arrays live on where they are in use
            return future, True

    def _reset_after_fork(self) -> None:
        if self._process != os.getpid():  # threads and locks are the parent's
            self._reset()

    def keep(self, shards: int) -> None:
        """Keeps at least so many shards open, those that were used last."""
        self._min_open = max(self._min_open, shards)

    def _fits(self) -> bool:
        if len(self._open) <= self._min_open:
            return True
        if self._description.folder.is_local:
            return False
        done = [future for future in self._open.values() if future.done() and future.exception() is None]
        return sum(future.result().data.size for future in done) <= self._cache_bytes

    def _load(self, shard: int, future: Future[Shard]) -> None:
        try:
            future.set_result(self._open_shard(shard))
        except BaseException as error:
            with self._lock:
                self._open.pop(shard, None)  # the next use tries again
            if isinstance(error, OSError) and error.errno == errno.EMFILE:
                error = DatasetError(
                    f"{self._description.folder.path}: {len(self._open)} shards are open, and this process may open no "
                    "more files; raise its limit (ulimit -n), or shuffle fewer shards together"
                )
            future.set_exception(error)

    def _open_shard(self, shard: int) -> Shard:
        description = self._description
        path = f"{description.folder.path}/{description.names[shard]}"
        stamp = self._stamp(shard)  # before the file is mapped: what changes from here on is noticed
        try:
            data = description.folder.map(description.names[shard])
        except FileNotFoundError as error:
            raise DatasetError(f"{path}: missing; {REMEDY}") from error
        records = int(description.records[shard])
        expected = None if description.sizes is None else int(description.sizes[shard])
        check_size(path, data.size, records=records, expected=expected)
        single_reads = self._single_reads.get(shard)
        offsets = (
            self._read_offsets(shard)
            if single_reads is None or single_reads.offsets is None
            else single_reads.offsets
        )
        offsets = index_frames(memoryview(data), records, path) if offsets is None else offsets
        return Shard(data, offsets, stamp)

    def _read_offsets(self, shard: int) -> np.ndarray | None:
        """Reads a shard's offsets, int64[records + 1]; None if there are none, or they are damaged."""
        description = self._description
        if description.offsets_checksums is None:
            return None
        name = offsets_name(description.names[shard])
        try:
            content = description.folder.map(name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, DatasetError):
            return None
        offsets = parse_offsets(
            content,
            crc=int(description.offsets_checksums[shard]),
            records=int(description.records[shard]),
            size=int(description.sizes[shard]),
        )
        if offsets is None:
            _log.warning("%s/%s: damaged, so the whole shard is read instead", description.folder.path, name)
        return offsets

    def _single_offsets(self, shard: int, records: np.ndarray) -> np.ndarray | None:
        """Returns a remote shard's offsets if these records should be read without the rest of it, else None."""
        description = self._description
        if description.folder.is_local or description.offsets_checksums is None:
            return None
        self._reset_after_fork()
        with self._lock:
            if shard in self._open:
                return None
            single_reads = self._single_reads.setdefault(shard, _SingleReads())
            self._single_reads.move_to_end(shard)
            if len(self._single_reads) > _MAX_CACHED_OFFSETS:
                self._single_reads.popitem(last=False)
            single_reads.reads += 1
            if single_reads.reads > _SINGLE_READS:
                return None
        if single_reads.offsets is None:
            single_reads.offsets = self._read_offsets(shard)
            if single_reads.offsets is None:
                single_reads.reads = _SINGLE_READS  # do not look for them again
                return None
        size = (single_reads.offsets[records + 1] - single_reads.offsets[records]).sum()
        return single_reads.offsets if size * _SINGLE_SHARE <= description.sizes[shard] else None

    def _read_single(self, shard: int, starts: np.ndarray, ends: np.ndarray) -> Frames:
        """Reads some ranges of a shard: the first byte and the end of each, int64[ranges]."""
        description = self._description
        ascending = np.argsort(starts)
        ranges: list[tuple[int, int]] = []
        for start, end in zip(starts[ascending].tolist(), ends[ascending].tolist(), strict=True):
            if ranges and start <= ranges[-1][1] + _MAX_GAP:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        try:
            pieces = description.folder.read_ranges(description.names[shard], ranges)
        except FileNotFoundError as error:
            path = f"{description.folder.path}/{description.names[shard]}"
            raise DatasetError(f"{path}: missing; {REMEDY}") from error
        range_starts = np.array([start for start, _ in ranges])
        piece_offsets = np.array([0, *itertools.accumulate(map(len, pieces))])
        range_index = np.searchsorted(range_starts, starts, side="right") - 1
        shift = piece_offsets[range_index] - range_starts[range_index]
        return Frames(np.frombuffer(b"".join(pieces), np.uint8), starts + shift, ends + shift)


class _SingleReads:
    """The single reads of a shard."""

    def __init__(self) -> None:
        self.reads = 0
        self.offsets: np.ndarray | None = None
