"""Shards of whole documents: a file, and perhaps its index, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import BinaryIO

from beam_pipeline.dataset.shards import ShardInfo, create_shard_file
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from tokenmill_reader.format.limits import MOST_DOCUMENT_TOKENS
from tokenmill_reader.format.names import index_name


def write_documents(
    blocks: Iterable[DocumentBlock],
    *,
    write: Callable[[Iterable[DocumentBlock], BinaryIO, BinaryIO | None], None],
    has_index: bool,
    path: str,
    temporary: str,
    split: int,
    shard: int,
    before_publishing: Callable[[ShardInfo], None],
) -> ShardInfo:
    """Writes a shard of documents and its index, if any, as `write_shard` does. The index appears last.

    Args:
        blocks: The documents, in their order.
        write: Writes the blocks to the files.
        has_index: Whether the format has an index.
        path: The shard's path.
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

    def checked_blocks() -> Iterator[DocumentBlock]:
        nonlocal records, checksum
        for block in blocks:
            longest = int(block.lengths.max(initial=0))
            if longest > MOST_DOCUMENT_TOKENS:
                raise DataError(
                    f"{path}: a document has {longest:,} tokens, but can have at most {MOST_DOCUMENT_TOKENS:,}; divide "
                    "the longest documents of the input"
                )
            records += len(block)
            checksum += block.checksum()
            yield block

    with (
        create_shard_file(index_path, index_name(temporary)) if has_index else nullcontext() as index,
        create_shard_file(path, temporary) as file,
    ):
        write(checked_blocks(), file, index)
        info = ShardInfo(
            split=split,
            shard=shard,
            name=name,
            records=records,
            bytes=file.bytes,
            crc32c=file.crc32c,
            rows_checksum=f"{checksum % 2**64:016x}",
            index_crc32c=index.crc32c if index else None,
        )
        before_publishing(info)
    return info
