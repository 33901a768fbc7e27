"""Opens the shards of a split, and keeps those that are in use open, with the places of their records."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from tokenmill_reader.description import Description
from tokenmill_reader.errors import REMEDY, DatasetError
from tokenmill_reader.framing import index_frames

_OPEN_LOCAL = 128  # each has a file descriptor
_READ_AHEAD_THREADS = 4


class Shard(NamedTuple):
    """An open shard."""

    data: np.ndarray
    """The file, uint8[bytes]."""
    offsets: np.ndarray
    """The places of the records' frames, and the file's size: int64[records + 1]."""


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
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Future[Shard]] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_description": self._description, "_cache_bytes": self._cache_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def get(self, shard: int) -> Shard:
        """Opens a shard.

        Raises:
            DatasetError: If it is missing, or differs from its name or the manifest.
        """
        future, is_ours = self._claim(shard)
        if is_ours:
            self._load(shard, future)
        return future.result()

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
        if self._process != os.getpid():  # forked: threads and locks are the parent's
            self._reset()
        with self._lock:
            future = self._open.get(shard)
            if future is not None:
                self._open.move_to_end(shard)
                return future, False
            future = self._open[shard] = Future()
            for other in list(self._open):
                if self._fits() or other == shard:
                    break
                del self._open[other]  # its arrays live on where they are in use
            return future, True

    def _fits(self) -> bool:
        if self._description.folder.is_local:
            return len(self._open) <= _OPEN_LOCAL
        done = [f for f in self._open.values() if f.done() and f.exception() is None]
        return sum(future.result().data.size for future in done) <= self._cache_bytes

    def _load(self, shard: int, future: Future[Shard]) -> None:
        try:
            future.set_result(self._read(shard))
        except BaseException as error:
            with self._lock:
                self._open.pop(shard, None)  # the next use tries again
            future.set_exception(error)

    def _read(self, shard: int) -> Shard:
        description = self._description
        path = f"{description.folder.path}/{description.names[shard]}"
        try:
            data = description.folder.map(description.names[shard])
        except FileNotFoundError as error:
            raise DatasetError(f"{path}: missing; {REMEDY}") from error
        if description.sizes is not None and data.size != description.sizes[shard]:
            raise DatasetError(
                f"{path}: {data.size} bytes, but the manifest specifies {description.sizes[shard]}; {REMEDY}"
            )
        records = int(description.records[shard])
        # A frame has at least 16 bytes. So a name cannot make this reserve more memory than the file has.
        if records * 16 > data.size:
            raise DatasetError(
                f"{path}: {data.size} bytes are too few for the {records} records that its name or the manifest "
                f"specifies; {REMEDY}"
            )
        return Shard(data, index_frames(memoryview(data), records, path))
