"""Shards of whole documents: pairs of a file and its index, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import google_crc32c

from beam_pipeline import filesystem
from beam_pipeline.dataset.shards import ShardInfo, index_name, refuse_others
from beam_pipeline.rows.documents import DocumentBlock


def write_documents(
    blocks: Iterable[DocumentBlock],
    *,
    write: Callable[[Iterable[DocumentBlock], BinaryIO, BinaryIO], None],
    path: str,
    temporary: str,
    split: int,
    shard: int,
    before_publishing: Callable[[ShardInfo], None],
) -> ShardInfo:
    """Writes a shard of documents and its index, as `write_shard` does. The index appears last.

    Args:
        blocks: The documents, in their order.
        write: Writes the blocks to both files.
        path: Of the shard.
        temporary: Its path until it is complete.
        split: The index of its split.
        shard: Its number within the split.
        before_publishing: Called right before the files appear. If it raises, no file appears.

    Raises:
        DataError: If there is a file with other content.
    """
    folder, _, name = path.rpartition("/")
    index_path = filesystem.join(folder, index_name(name))
    records = checksum = 0

    def counted() -> Iterator[DocumentBlock]:
        nonlocal records, checksum
        for block in blocks:
            records += len(block)
            checksum += block.checksum()
            yield block

    try:
        with filesystem.create_new(index_path, index_name(temporary)) as index_file:
            try:
                with filesystem.create_new(path, temporary) as file:
                    data, index = _SummedFile(file), _SummedFile(index_file)
                    write(counted(), data, index)
                    info = ShardInfo(
                        split=split,
                        shard=shard,
                        name=name,
                        records=records,
                        bytes=data.bytes,
                        crc32c=f"{data.crc:08x}",
                        rows_checksum=f"{checksum % 2**64:016x}",
                        index_crc32c=f"{index.crc:08x}",
                    )
                    before_publishing(info)
            except FileExistsError as error:
                refuse_others(path, (info.bytes, info.crc32c), error)
    except FileExistsError as error:
        refuse_others(index_path, (index.bytes, info.index_crc32c), error)
    return info


class _SummedFile:
    """Writes to a file, and computes the size and CRC-32C of what it writes."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.bytes = self.crc = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)
        self.crc = google_crc32c.extend(self.crc, data)
