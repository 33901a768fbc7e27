"""Shards: their names, and writing them atomically."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import google_crc32c
import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.rows.blocks import RowBlock, rows_checksum

# The extension of the files of each format in `--output_format`.
EXTENSIONS = {"tfrecord": "tfrecord", "parquet": "parquet"}

SHARD_NAME = re.compile(
    rf"(?P<split>.+)-(?P<shard>\d{{5,}})-(?P<records>\d+)\.({'|'.join(EXTENSIONS.values())})"
)

_READ_BYTES = 16 << 20


def shard_name(split: str, shard: int, records: int, output_format: str) -> str:
    """Returns the file name of a shard, e.g. `<split>-<shard>-<records>.tfrecord`."""
    return f"{split}-{shard:05d}-{records}.{EXTENSIONS[output_format]}"


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

    def to_json(self) -> dict:
        """Returns the shard's entry in the manifest."""
        return {key: value for key, value in asdict(self).items() if key not in ("split", "shard")}


def assemble(blocks: Iterable[RowBlock], records: int, place: str) -> RowBlock:
    """Puts the rows of a shard into their slots. The blocks may come in any order.

    Raises:
        AssertionError: If a slot is not filled exactly once, so a row was lost or duplicated.
    """
    filled = np.zeros(records, np.int64)
    whole: RowBlock | None = None
    for block in blocks:
        if whole is None:
            starts = None if block.starts is None else np.zeros((records, block.starts.shape[1]), np.uint8)
            ids = np.zeros((records, block.ids.shape[1]), block.ids.dtype)
            whole = RowBlock(ids, np.zeros(records, np.uint32), starts)
        slots = block.slots
        if slots.size and int(slots.max()) >= records:
            raise AssertionError(
                f"{place}: a row has slot {int(slots.max())}, but the shard has {records} slots"
            )
        whole.ids[slots] = block.ids
        whole.lengths[slots] = block.lengths
        if whole.starts is not None:
            whole.starts[slots] = block.starts
        filled += np.bincount(slots, minlength=records)
    if whole is None or (filled != 1).any():
        wrong = np.flatnonzero(filled != 1)
        raise AssertionError(
            f"{place}: {len(wrong)} of {records} slots were not filled exactly once, the first is "
            f"{int(wrong[0])}, filled {int(filled[wrong[0]])} times: rows were lost or duplicated"
        )
    return whole


def write_shard(
    block: RowBlock,
    *,
    encode: Callable[[RowBlock], Iterable[bytes]],
    path: str,
    temporary: str,
    split: int,
    shard: int,
    before_publishing: Callable[[ShardInfo], None],
) -> ShardInfo:
    """Writes a shard's rows to `temporary`, and moves the file to `path`, but never replaces a file there.

    Args:
        block: The rows.
        encode: Returns the file's bytes in pieces.
        path: Of the shard.
        temporary: Its path until it is complete.
        split: The index of its split.
        shard: Its number within the split.
        before_publishing: Called right before the file appears. If it raises, the file does not appear.

    Raises:
        DataError: If `path` is a file with other content.
    """
    size, crc = 0, 0
    checksum = rows_checksum(block.ids, block.lengths)
    try:
        with filesystem.create_new(path, temporary) as file:
            for data in encode(block):
                file.write(data)
                size += len(data)
                crc = google_crc32c.extend(crc, data)
            info = ShardInfo(
                split, shard, path.rpartition("/")[2], len(block), size, f"{crc:08x}", f"{checksum:016x}"
            )
            before_publishing(info)
    except FileExistsError as error:
        if not matches_file(info, path):  # an earlier attempt may have written the same shard
            raise DataError(
                f"{path}: already exists, and this run did not write it; move it away, or choose another --output"
            ) from error
    return info


def matches_file(info: ShardInfo, path: str) -> bool:
    """Returns whether the file at `path` is the shard, judging by its size and checksum."""
    return file_sums(path) == (info.bytes, info.crc32c)


def file_sums(path: str) -> tuple[int, str]:
    """Computes a file's size and its CRC-32C, 8 hex digits."""
    size, crc = 0, 0
    with filesystem.open_file(path) as file:
        while data := file.read(_READ_BYTES):
            size += len(data)
            crc = google_crc32c.extend(crc, data)
    return size, f"{crc:08x}"
