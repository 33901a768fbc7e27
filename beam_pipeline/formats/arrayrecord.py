"""ArrayRecord files of `tf.Example` records, for random access: each record is compressed by itself.

The records are those of TFRecord. The bytes depend on the version of array_record. Its writer takes the path of a local
file, so a shard is first written to the temporary folder. Its reader has threads: a process that has read a shard must
not be forked.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from shutil import copyfileobj
from typing import BinaryIO

import numpy as np

from beam_pipeline.dataset.records import RecordError, decode_frames, max_record_bytes, read_frames
from beam_pipeline.formats.base import RowFormat
from beam_pipeline.formats.tfrecord import TFRecord
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.support.errors import FileError

# All options that determine the bytes, so that they do not depend on the library's defaults.
_OPTIONS = "group_size:1,transpose:false,zstd:3,window_log:20,pad_to_block_boundary:false,max_parallelism:1"
_PIECE_BYTES = 4 << 20


class ArrayRecord(RowFormat):
    """Rows as ArrayRecord files of `tf.Example` records."""

    name = "arrayrecord"
    extra = "arrayrecord"

    @cached_property
    def _tfrecord(self) -> TFRecord:
        return TFRecord(self.form)

    def encode(self, block: RowBlock) -> Iterator[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shard"
            self._write(block, path)
            with path.open("rb") as file:
                while data := file.read(_PIECE_BYTES):
                    yield data

    def _write(self, block: RowBlock, path: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        try:
            writer = ArrayRecordWriter(str(path), _OPTIONS)
            for frames in self._tfrecord.encode(block):
                for record in read_frames(io.BytesIO(frames), str(path)):
                    writer.write(record)
            writer.close()
        except RuntimeError as error:  # e.g. a full disk
            raise FileError(f"{path}: {error}") from error

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        shape = {"max_length": self.form.max_length, "features": self.form.features}
        with _local_copy(file) as local_path:
            yield from decode_frames(
                _read_records(local_path, path, max_record_bytes(**shape), first, count), **shape
            )


@contextmanager
def _local_copy(file: BinaryIO) -> Iterator[str]:
    """Yields the path of a local file with the same content."""
    name = getattr(file, "name", None)
    if isinstance(name, str) and Path(name).is_file():
        yield name
        return
    with tempfile.NamedTemporaryFile() as copy:
        copyfileobj(file, copy, _PIECE_BYTES)
        copy.flush()
        yield copy.name


def _read_records(
    local_path: str, path: str, max_bytes: int, first: int, count: int | None
) -> Iterator[bytes]:
    """Yields records, and checks their checksums.

    Args:
        local_path: The path of the local file.
        path: The path of the shard, for messages.
        max_bytes: The largest possible size of a record.
        first: The number of records to skip.
        count: The largest number of records; None: all.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    batch_size = max(1, _PIECE_BYTES // max_bytes)
    try:
        reader = ArrayRecordReader(local_path, "readahead_buffer_size:0,max_parallelism:0")
        if not reader.ok():
            reader.close()  # raises the error
        total = reader.num_records()
        end = total if count is None else min(total, first + count)
        for start in range(first, end, batch_size):
            for number, record in enumerate(reader.read(start, min(end, start + batch_size)), start):
                if len(record) > max_bytes:
                    raise RecordError(
                        f"{path}: record {number} has {len(record)} bytes; the maximum is {max_bytes}"
                    )
                yield record
        reader.close()
    except RuntimeError as error:
        raise RecordError(f"{path}: not an intact ArrayRecord file: {error}") from error


ROW_FORMAT = ArrayRecord
