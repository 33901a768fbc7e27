"""Shards: their names, and writing one whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import google_crc32c
import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset.records import ExampleEncoder
from beam_pipeline.errors import DataError
from beam_pipeline.rows.blocks import RowBlock, rows_checksum

SHARD_NAME = re.compile(r"(?P<split>.+)-(?P<shard>\d{5,})-(?P<records>\d+)\.tfrecord")

_VALUES_PER_WRITE = 1 << 18  # encoding takes about 20 bytes for each value of a feature
_READ_BYTES = 16 << 20


def shard_name(split: str, shard: int, records: int) -> str:
    """The file name of a shard: `<split>-<shard>-<count>.tfrecord`."""
    return f"{split}-{shard:05d}-{records}.tfrecord"


@dataclass(frozen=True)
class ShardInfo:
    """What the manifest says of a shard.

    Attributes:
      split: the split's index in the run's list of splits.
      shard: its number within the split.
      name: its file name.
      records: how many it holds.
      bytes: its size.
      crc32c: of the file's bytes, 8 hex digits.
      rows_checksum: `rows.rows_checksum` of its rows, 16 hex digits.
    """

    split: int
    shard: int
    name: str
    records: int
    bytes: int
    crc32c: str
    rows_checksum: str

    def to_json(self) -> dict:
        """The shard's entry in the manifest."""
        return {key: value for key, value in asdict(self).items() if key not in ("split", "shard")}


def assemble(blocks: Iterable[RowBlock], records: int, place: str) -> RowBlock:
    """Puts every row into its slot.

    Args:
      blocks: routed rows (their `slots` are set), in any order.
      records: slots in the shard.
      place: the shard's name, for the errors.

    Raises:
      AssertionError: where a slot was filled twice or never: a row was lost or doubled on its way.
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
            raise AssertionError(f"{place}: slot {int(slots.max())} of a shard of {records} records")
        whole.ids[slots] = block.ids
        whole.lengths[slots] = block.lengths
        if whole.starts is not None:
            whole.starts[slots] = block.starts
        filled += np.bincount(slots, minlength=records)
    if whole is None or (filled != 1).any():
        wrong = np.flatnonzero(filled != 1)
        raise AssertionError(
            f"{place}: {len(wrong)} of {records} slots were not filled exactly once, the first is "
            f"{int(wrong[0])}, filled {int(filled[wrong[0]])} times: rows were lost or doubled"
        )
    return whole


def write_shard(
    block: RowBlock,
    *,
    encoder: ExampleEncoder,
    path: str,
    temporary: str,
    split: int,
    shard: int,
    before_publishing: Callable[[ShardInfo], None],
) -> ShardInfo:
    """Writes a shard's rows to the file `path`, by way of `temporary`; on failure neither is left.

    Args:
      block: the shard's rows.
      encoder: makes their records.
      path, temporary: where the shard goes. If there is a file at `path` already, it is left as it is.
      split, shard: the shard's place in the dataset.
      before_publishing: called right before the file appears; if it raises, the file does not.

    Raises:
      DataError: if there is another file at `path`.
    """
    size, crc = 0, 0
    checksum = rows_checksum(block.ids, block.lengths)
    try:
        with filesystem.create_new(path, temporary) as file:
            rows = max(1, _VALUES_PER_WRITE // block.ids.shape[1])
            for first in range(0, len(block), rows):
                data = b"".join(encoder.encode(block.take(slice(first, first + rows))))
                file.write(data)
                size += len(data)
                crc = google_crc32c.extend(crc, data)
            info = ShardInfo(
                split, shard, path.rpartition("/")[2], len(block), size, f"{crc:08x}", f"{checksum:016x}"
            )
            before_publishing(info)
    except FileExistsError as error:
        if not is_at(info, path):  # if it is, an earlier attempt has written it
            raise DataError(
                f"{path}: there is another file of this name, which this run did not write; it is left as it is: move "
                "it away, or name another --output"
            ) from error
    return info


def is_at(info: ShardInfo, path: str) -> bool:
    """Whether the file at `path` is the shard, by its size and its checksum."""
    size, crc = 0, 0
    with filesystem.open_file(path) as file:
        while data := file.read(_READ_BYTES):
            size += len(data)
            crc = google_crc32c.extend(crc, data)
    return size == info.bytes and f"{crc:08x}" == info.crc32c
