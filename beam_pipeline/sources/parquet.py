"""Parquet files: one document per row, its text in one column. A work unit reads whole row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import conversations
from beam_pipeline.sources.columns import (
    PIECE_BYTES,
    column_paths,
    column_records,
    present_columns,
    split_column,
    text_column,
    with_columns,
)
from beam_pipeline.sources.cutting import FileRange
from beam_pipeline.sources.opening import open_footer
from beam_pipeline.sources.units import Part, Records
from beam_pipeline.support.arrow import pa, pq
from beam_pipeline.support.errors import UsageError, one_line

_PAGE_BUFFER = 4 << 20  # column chunks are read through a buffer of this size instead of as a whole

# DELTA_BYTE_ARRAY stores a text as the length of the prefix that it shares with the previous text, and the rest. A text
# of any length may take a few bytes, so the column's size does not bound the size of the decoded rows. Neither does it
# for dictionaries that are decoded.
_MAX_EXPANDING_ROWS = 64


def row_groups(path: str, size: int, options: InputConfig) -> list[FileRange]:
    """Lists the row groups with rows of a file of `size` bytes. Reads only the file's footer.

    Raises:
        UsageError: If this is not a parquet file, or it has no such text column.
    """
    try:
        with open_footer(path, size) as file:
            metadata = pq.read_metadata(pa.PythonFile(file, mode="r"))
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"--input: {path}: cannot be read as parquet: {one_line(error)}") from error
    leaves = _leaves(path, metadata, options)
    groups = enumerate(map(metadata.row_group, range(metadata.num_row_groups)))
    return [FileRange(number, number + 1, _size(group, leaves)) for number, group in groups if group.num_rows]


def bytes_per_row(path: str, size: int, options: InputConfig, index: int) -> float:
    """Returns the size of a row group as `row_groups` lists it, divided by its number of rows."""
    with open_footer(path, size) as file:
        metadata = pq.read_metadata(pa.PythonFile(file, mode="r"))
    group = metadata.row_group(index)
    return _size(group, _leaves(path, metadata, options)) / group.num_rows


def schema_of(file: BinaryIO) -> pa.Schema:
    """Returns the table's columns."""
    return pq.read_schema(pa.PythonFile(file, mode="r"))


def read(file: BinaryIO, part: Part, options: InputConfig, columns: Sequence[str] = ()) -> Iterator[Records]:
    """Yields the rows of the row groups [part.start, part.end), a few MiB at a time.

    The footer records the size of a column's pages, in which a dictionary value counts once, however many rows have it.
    So dictionary-encoded columns stay encoded until they are split by the size of their decoded texts.
    """
    source = pa.PythonFile(file, mode="r")
    metadata = pq.read_metadata(source)
    if options.content == "conversation":
        yield from _read_conversations(source, metadata, part, options, columns)
        return
    paths = column_paths(part.name, metadata.schema.to_arrow_schema(), options.text_key)
    leaves = _leaves(part.name, metadata, options)
    groups = {index: metadata.row_group(index) for index in range(part.start, part.end)}
    with_dictionary = any(
        group.column(leaf).has_dictionary_page for group in groups.values() for leaf in leaves
    )
    stays_encoded = (
        with_dictionary and len(leaves) == len(paths[0]) == 1 and not _is_nested(metadata, leaves[0])
    )
    parquet = pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=[options.text_key] if stays_encoded else None,
        buffer_size=_PAGE_BUFFER,
        page_checksum_verification=True,
    )
    row = sum(metadata.row_group(index).num_rows for index in range(part.start))
    for index, group in groups.items():
        for batch in parquet.iter_batches(
            batch_size=_batch_rows(group, leaves, expands=with_dictionary and not stays_encoded),
            row_groups=[index],
            columns=[
                *(".".join(path) for path in paths),
                *present_columns(metadata.schema.to_arrow_schema(), columns),
            ],
            use_threads=False,
        ):
            first_row = row
            for piece in split_column(text_column(batch, paths, options.text_separator)):
                records = column_records(part.name, piece, row, options.encoding_errors)
                yield with_columns(records, batch, first_row, columns)
                row += len(piece)


def _read_conversations(
    source: pa.NativeFile,
    metadata: pq.FileMetaData,
    part: Part,
    options: InputConfig,
    columns: Sequence[str],
) -> Iterator[Records]:
    names = conversations.columns_of(part.name, metadata.schema.to_arrow_schema(), options)
    leaves = _leaves(part.name, metadata, options)
    parquet = pq.ParquetFile(
        source, metadata=metadata, buffer_size=_PAGE_BUFFER, page_checksum_verification=True
    )
    row = sum(metadata.row_group(index).num_rows for index in range(part.start))
    for index in range(part.start, part.end):
        group = metadata.row_group(index)
        expands = any(group.column(leaf).has_dictionary_page for leaf in leaves)
        for batch in parquet.iter_batches(
            batch_size=_batch_rows(group, leaves, expands=expands),
            row_groups=[index],
            columns=[*names, *present_columns(metadata.schema.to_arrow_schema(), columns)],
            use_threads=False,
        ):
            for records in conversations.table_records(part.name, batch.select(names), row, options):
                yield with_columns(records, batch, row, columns)
            row += len(batch)


def _batch_rows(group: pq.RowGroupMetaData, leaves: Sequence[int], *, expands: bool) -> int:
    """Returns the number of rows to decode at once.

    Args:
        group: The row group.
        leaves: The indices of the columns that are read.
        expands: Whether the decoded texts may be much larger than the columns.
    """
    expands = expands or any("DELTA_BYTE_ARRAY" in group.column(leaf).encodings for leaf in leaves)
    limit = _MAX_EXPANDING_ROWS if expands else 1 << 16
    return max(1, min(limit, PIECE_BYTES * group.num_rows // max(1, _size(group, leaves))))


def _size(group: pq.RowGroupMetaData, leaves: Sequence[int]) -> int:
    return sum(group.column(leaf).total_uncompressed_size for leaf in leaves)


def _leaves(source: str, metadata: pq.FileMetaData, options: InputConfig) -> list[int]:
    """Returns the indices of the documents' leaf columns.

    They are counted in the schema, because paths are ambiguous: field `b` of struct `a` has the path `a.b`, and so has
    a column named `a.b`.
    """
    schema = metadata.schema.to_arrow_schema()
    leaves: list[int] = []
    if options.content == "conversation":
        for column in conversations.columns_of(source, schema, options):
            index = schema.get_field_index(column)
            first_leaf = sum(_num_leaves(field.type) for field in list(schema)[:index])
            leaves += range(first_leaf, first_leaf + _num_leaves(schema.field(index).type))
        return leaves
    for path in column_paths(source, schema, options.text_key):
        first_leaf, fields = 0, list(schema)
        for name in path:
            index = [field.name for field in fields].index(name)
            first_leaf += sum(_num_leaves(field.type) for field in fields[:index])
            field_type = fields[index].type
            fields = list(field_type) if pa.types.is_struct(field_type) else []
        leaves.append(first_leaf)
    return leaves


def _num_leaves(field_type: pa.DataType) -> int:
    if isinstance(field_type, pa.BaseExtensionType):
        return _num_leaves(field_type.storage_type)
    if pa.types.is_dictionary(field_type):
        return 1
    return sum(_num_leaves(field_type.field(index).type) for index in range(field_type.num_fields)) or 1


def _is_nested(metadata: pq.FileMetaData, leaf: int) -> bool:
    return metadata.schema.column(leaf).path != metadata.schema.column(leaf).name
