"""Arrow streams, as the `datasets` library writes them: a document per row, its text in one column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources.columns import check_column, column_records, pieces
from beam_pipeline.sources.units import Part, Records


@dataclass(frozen=True)
class RecordBatch:
    """One of a stream's record batches.

    Attributes:
      at: (its first byte, its first row): where a reader may begin.
      rows: how many it holds.
      bytes: the size of its texts.
    """

    at: tuple[int, int]
    rows: int
    bytes: int


def record_batches(path: str, text_key: str) -> list[RecordBatch]:
    """The record batches of a local file. Reads their headers only, since the file is mapped into memory.

    Raises:
      UsageError: where there is no such column of text.
    """
    batches = []
    row = 0
    with pa.memory_map(path) as source:
        schema = _schema(source)
        check_column(path, schema, text_key)
        while (at := source.tell()) < source.size():
            batch = _next_batch(source, schema)
            if batch is None:
                break
            batches.append(RecordBatch((at, row), batch.num_rows, batch.column(text_key).nbytes))
            row += batch.num_rows
    return batches


def read(file: BinaryIO, part: Part, options: InputConfig) -> Iterator[Records]:
    """The rows [part.start, part.end), a few MiB at a time."""
    source = pa.PythonFile(file, mode="r")
    schema = _schema(source)
    position, row = part.at
    if position:
        source.seek(position)
    while row < part.end:
        batch = _next_batch(source, schema)
        if batch is None:
            raise EOFError(f"ends at row {row}, though it had at least {part.end} when it was listed")
        column = batch.column(options.text_key)
        first, last = max(part.start - row, 0), min(part.end - row, len(column))
        at = row + first
        for piece in pieces(column.slice(first, max(0, last - first))):
            yield column_records(part.name, piece, at)
            at += len(piece)
        row += len(column)


def _schema(source: pa.NativeFile) -> pa.Schema:
    return pa.ipc.read_schema(pa.ipc.read_message(source))


def _next_batch(source: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch | None:
    try:
        message = pa.ipc.read_message(source)
    except EOFError:
        return None
    return pa.ipc.read_record_batch(message, schema)
