"""Shards and the offsets of their records: the names of their files, and writing them atomically."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from beam_pipeline.dataset.offsets import OffsetFinder, offsets_size
from beam_pipeline.engines.token_arrays import joined_columns, selected_columns
from beam_pipeline.native.ids import copy_rows
from beam_pipeline.rows.blocks import RowBlock, rows_checksum
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError
from tokenmill_reader.format.names import index_name, offsets_name

_READ_BYTES = 16 << 20


def index_size(documents: int) -> int:
    """Returns the size of the index of a shard of documents (docs/dataset-format.md)."""
    return 42 + 20 * documents


@dataclass(frozen=True)
class ShardInfo:
    """The metadata of a shard, as in the manifest."""

    split: int
    """The index of its split in the run's list of splits."""
    shard: int
    """Its number within the split."""
    name: str
    """Its file name."""
    records: int
    """Its number of records."""
    bytes: int
    """Its size."""
    crc32c: str
    """The CRC-32C of the file's bytes, 8 hex digits."""
    rows_checksum: str
    """`rows_checksum` of its rows, 16 hex digits."""
    offsets_crc32c: str | None = None
    """The CRC-32C of the file with its offsets, 8 hex digits. None if its format has no offsets."""
    index_crc32c: str | None = None
    """The CRC-32C of its index, 8 hex digits. None if its format has none."""

    def to_json(self) -> dict:
        """Returns the shard's entry in the manifest."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in ("split", "shard") and value is not None
        }


class Assembly:
    """Puts the rows of shards into their slots. Several threads may add blocks at the same time.

    Args:
        records: The number of slots.
        owner: The shards that have these slots, for messages.
    """

    def __init__(self, records: int, owner: str):
        self._records = records
        self._owner = owner
        self._filled = np.zeros(records, np.int64)
        self._assembled: RowBlock | None = None
        self._columns: list[tuple[np.ndarray, pa.Table]] = []
        self._lock = threading.Lock()

    def add(self, block: RowBlock, slots: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Copies rows of a block into their slots.

        Args:
            block: The block.
            slots: Integers [copied rows]: the slots.
            rows: int64 [copied rows]: the numbers of the rows in the block. None for all, in their order.

        Raises:
            AssertionError: If there is no such slot.
        """
        records = self._records
        rows = np.arange(len(block)) if rows is None else rows
        invalid_slots = slots[(slots < 0) | (slots >= records)]
        if invalid_slots.size:
            raise AssertionError(
                f"{self._owner}: a row has slot {int(invalid_slots[0])}, but the shard has {records} slots"
            )
        with self._lock:
            np.add.at(self._filled, slots, 1)  # unlike bincount, takes no time for the other slots
            if self._assembled is None:
                self._assembled = _empty_rows(block, records)
            if block.columns is not None:
                self._columns.append((slots, selected_columns(block.columns, rows)))
        assembled = self._assembled
        # Outside of the lock: threads write to different slots, or a slot is filled twice, which `rows` reports.
        copy_rows(assembled.ids, slots, block.ids, rows)
        assembled.lengths[slots] = block.lengths[rows]
        if assembled.starts is not None:
            copy_rows(assembled.starts, slots, block.starts, rows)

    def rows(self) -> RowBlock:
        """Returns all rows, in the order of their slots.

        Raises:
            AssertionError: If a slot is not filled exactly once, so a row was lost or duplicated.
        """
        if self._assembled is None or (self._filled != 1).any():
            wrong_slots = np.flatnonzero(self._filled != 1)
            raise AssertionError(
                f"{self._owner}: {len(wrong_slots)} of {self._records} slots were not filled exactly once, the first "
                f"is {wrong_slots[0]}, filled {self._filled[wrong_slots[0]]} times: rows were lost or duplicated"
            )
        if not self._columns:
            return self._assembled
        slots = np.concatenate([slots for slots, _ in self._columns])
        columns = joined_columns([columns for _, columns in self._columns])
        return replace(self._assembled, columns=selected_columns(columns, np.argsort(slots)))


def _empty_rows(like: RowBlock, rows: int) -> RowBlock:
    starts = None if like.starts is None else np.zeros((rows, like.starts.shape[1]), np.uint8)
    return RowBlock(np.zeros((rows, like.ids.shape[1]), like.ids.dtype), np.zeros(rows, np.uint32), starts)


def assemble(blocks: Iterable[RowBlock], records: int, owner: str) -> RowBlock:
    """Puts the rows of a shard into their slots; see `Assembly`. The blocks may come in any order."""
    assembly = Assembly(records, owner)
    for block in blocks:
        assembly.add(block, block.slots)
    return assembly.rows()


def write_shard(
    block: RowBlock,
    *,
    encode: Callable[[RowBlock], Iterable[bytes | np.ndarray]],
    with_offsets: bool,
    path: str,
    temporary: str,
    split: int,
    shard: int,
    before_publishing: Callable[[ShardInfo], None],
) -> ShardInfo:
    """Writes a shard's rows, and then their offsets, to `temporary`, and moves the files to their paths.

    Never replaces a file there.

    Args:
        block: The rows.
        encode: Returns the file's bytes in pieces, uint8 if they are arrays.
        with_offsets: Whether to write the offsets of its records; its format must be TFRecord.
        path: The shard's path.
        temporary: Its path until it is complete.
        split: The index of its split.
        shard: Its number within the split.
        before_publishing: Called right before the shard appears. If it raises, no file appears.

    Raises:
        DataError: If there is a file with other content.
    """
    finder = OffsetFinder() if with_offsets else None
    checksum = rows_checksum(block.ids, block.lengths)
    with create_shard_file(path, temporary) as file:
        for data in encode(block):
            file.write(data)
            if finder:
                finder.add(data)
        offsets = finder.to_bytes() if finder else b""
        info = ShardInfo(
            split=split,
            shard=shard,
            name=path.rpartition("/")[2],
            records=len(block),
            bytes=file.bytes,
            crc32c=file.crc32c,
            rows_checksum=f"{checksum:016x}",
            offsets_crc32c=f"{google_crc32c.value(offsets):08x}" if finder else None,
        )
        before_publishing(info)
    if finder:
        folder = path.rpartition("/")[0]
        with create_shard_file(filesystem.join(folder, offsets_name(info.name)), temporary) as file:
            file.write(offsets)
    return info


class SummedFile:
    """Writes to a file, and computes the size and the checksum of what it writes."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._crc = 0
        self.bytes = 0

    def write(self, data: bytes | np.ndarray) -> None:
        self._file.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self.bytes += len(data)

    @property
    def crc32c(self) -> str:
        """The CRC-32C, 8 hex digits."""
        return f"{self._crc:08x}"


@contextlib.contextmanager
def create_shard_file(path: str, temporary: str) -> Iterator[SummedFile]:
    """Creates a file as `filesystem.create_new` does, unless an earlier attempt has written the same.

    Raises:
        DataError: If there is a file with other content.
    """
    try:
        with filesystem.create_new(path, temporary) as opened:
            file = SummedFile(opened)
            yield file
    except FileExistsError as error:
        if file_sums(path) != (file.bytes, file.crc32c):
            raise DataError(
                f"{path}: already exists, and this run did not write it; move it away, or choose another --output"
            ) from error


def files_of_shard(shard: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Returns the sizes and checksums of a shard's file, and of its offsets or its index, by their paths in the split's
    folder.

    Args:
        shard: Its entry in the manifest. Only one of the format TFRecord has offsets.
    """
    files = {shard["name"]: (shard["bytes"], shard["crc32c"])}
    if shard.get("offsets_crc32c"):
        files[offsets_name(shard["name"])] = offsets_size(shard["records"]), shard["offsets_crc32c"]
    if shard.get("index_crc32c"):
        files[index_name(shard["name"])] = index_size(shard["records"]), shard["index_crc32c"]
    return files


def file_sums(path: str) -> tuple[int, str]:
    """Computes a file's size and its CRC-32C, 8 hex digits."""
    size, crc = 0, 0
    with filesystem.open_file(path) as file:
        while data := file.read(_READ_BYTES):
            size += len(data)
            crc = google_crc32c.extend(crc, data)
    return size, f"{crc:08x}"
