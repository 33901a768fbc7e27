"""Arrow streams as the `datasets` library writes them: one document per row, its text in one column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import conversations
from beam_pipeline.sources.columns import (
    column_paths,
    column_records,
    split_column,
    text_column,
    with_columns,
)
from beam_pipeline.sources.cutting import FileRange
from beam_pipeline.sources.units import Part, Records
from beam_pipeline.support.arrow import pa


def record_batches(path: str, options: InputConfig) -> list[FileRange]:
    """Lists the record batches of a local file, with the offset and the number of the first row of each.

    The file is mapped into memory, so only the batches' headers are read.

    Raises:
        UsageError: If the table has no such text column.
    """
    batches = []
    row = 0
    with pa.memory_map(path) as source:
        schema = _schema(source)
        columns = (
            set(conversations.columns_of(path, schema, options))
            if options.content == "conversation"
            else {name for name, *_ in column_paths(path, schema, options.text_key)}
        )
        while (offset := source.tell()) < source.size():
            batch = _next_batch(source, schema)
            if batch is None:
                break
            end = row + batch.num_rows
            size = sum(batch.column(name).nbytes for name in columns)
            batches.append(FileRange(row, end, size, (offset, row)))
            row = end
    return batches


def schema_of(file: BinaryIO) -> pa.Schema:
    """Returns the table's columns."""
    return _schema(pa.PythonFile(file, mode="r"))


def read(file: BinaryIO, part: Part, options: InputConfig, columns: Sequence[str] = ()) -> Iterator[Records]:
    """Yields the rows [part.start, part.end), a few MiB at a time."""
    source = pa.PythonFile(file, mode="r")
    schema = _schema(source)
    has_conversations = options.content == "conversation"
    names = conversations.columns_of(part.name, schema, options) if has_conversations else []
    paths = [] if has_conversations else column_paths(part.name, schema, options.text_key)
    position, row = part.batch_start
    if position:
        source.seek(position)
    while row < part.end:
        batch = _next_batch(source, schema)
        if batch is None:
            raise EOFError(f"ends at row {row}, but had at least {part.end} rows when it was listed")
        start, end = max(part.start - row, 0), min(part.end - row, len(batch))
        first_row = row + start
        if has_conversations:
            selected = batch.select(names).slice(start, max(0, end - start))
            for records in conversations.table_records(part.name, selected, first_row, options):
                yield with_columns(records, batch, row, columns)
            row += len(batch)
            continue
        column = text_column(batch, paths, options.text_separator)
        for piece in split_column(column.slice(start, max(0, end - start))):
            records = column_records(part.name, piece, first_row, options.encoding_errors)
            yield with_columns(records, batch, row, columns)
            first_row += len(piece)
        row += len(column)


def _schema(source: pa.NativeFile) -> pa.Schema:
    return pa.ipc.read_schema(pa.ipc.read_message(source))


def _next_batch(source: pa.NativeFile, schema: pa.Schema) -> pa.RecordBatch | None:
    try:
        message = pa.ipc.read_message(source)
    except EOFError:
        return None
    return pa.ipc.read_record_batch(message, schema)
