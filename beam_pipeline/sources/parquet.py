"""Parquet files: one document per row, its text in one column. A work unit reads whole row groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.errors import UsageError, one_line
from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources.columns import PIECE_BYTES, check_column, column_records, split_column
from beam_pipeline.sources.cutting import Piece
from beam_pipeline.sources.opening import open_footer
from beam_pipeline.sources.units import Part, Records

_PAGE_BUFFER = 4 << 20  # column chunks are read through a buffer of this size instead of as a whole

# DELTA_BYTE_ARRAY stores a text as the length of the prefix that it shares with the previous text, and the rest. A text
# of any length may take a few bytes, so the column's size says nothing about the size of the decoded rows.
_MAX_PREFIX_ENCODED_ROWS = 64


def row_groups(path: str, size: int, text_key: str) -> list[Piece]:
    """Lists the row groups with rows of a file of `size` bytes. Reads only the file's footer.

    Raises:
        UsageError: If this is not a parquet file, or it has no such text column.
    """
    try:
        with open_footer(path, size) as file:
            metadata = pq.read_metadata(pa.PythonFile(file, mode="r"))
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"--input: {path}: cannot be read as parquet: {one_line(error)}") from error
    check_column(path, metadata.schema.to_arrow_schema(), text_key)
    column = _column_index(metadata, text_key)
    groups = enumerate(map(metadata.row_group, range(metadata.num_row_groups)))
    return [
        Piece(number, number + 1, group.column(column).total_uncompressed_size)
        for number, group in groups
        if group.num_rows
    ]


def bytes_per_row(path: str, size: int, text_key: str, index: int) -> float:
    """Returns the size of a row group as `row_groups` lists it, divided by its number of rows."""
    with open_footer(path, size) as file:
        metadata = pq.read_metadata(pa.PythonFile(file, mode="r"))
    group = metadata.row_group(index)
    return group.column(_column_index(metadata, text_key)).total_uncompressed_size / group.num_rows


def read(file: BinaryIO, part: Part, options: InputConfig) -> Iterator[Records]:
    """Yields the rows of the row groups [part.start, part.end), a few MiB at a time.

    The footer records the size of a column's pages, in which a dictionary value counts once, however many rows have it.
    So dictionary-encoded columns stay encoded until they are split by the size of their decoded texts.
    """
    source = pa.PythonFile(file, mode="r")
    metadata = pq.read_metadata(source)
    column = _column_index(metadata, options.text_key)
    chunks = {index: metadata.row_group(index).column(column) for index in range(part.start, part.end)}
    with_dictionary = any(chunk.has_dictionary_page for chunk in chunks.values())
    parquet = pq.ParquetFile(
        source,
        metadata=metadata,
        read_dictionary=[options.text_key] if with_dictionary else None,
        buffer_size=_PAGE_BUFFER,
        page_checksum_verification=True,
    )
    row = sum(metadata.row_group(index).num_rows for index in range(part.start))
    for index, chunk in chunks.items():
        for batch in parquet.iter_batches(
            batch_size=_batch_rows(chunk, metadata.row_group(index).num_rows),
            row_groups=[index],
            columns=[options.text_key],
            use_threads=False,
        ):
            for piece in split_column(batch.column(options.text_key)):
                yield column_records(part.name, piece, row)
                row += len(piece)


def _batch_rows(chunk: pq.ColumnChunkMetaData, rows: int) -> int:
    """How many rows to decode at once."""
    limit = _MAX_PREFIX_ENCODED_ROWS if "DELTA_BYTE_ARRAY" in chunk.encodings else 1 << 16
    return max(1, min(limit, PIECE_BYTES * rows // max(1, chunk.total_uncompressed_size)))


def _column_index(metadata: pq.FileMetaData, text_key: str) -> int:
    """Returns the index of the text's leaf column.

    Both path and name are compared: field `b` of struct `a` has the path `a.b`, like a column named `a.b`.
    """
    leaves = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    return [leaf.path == leaf.name == text_key for leaf in leaves].index(True)
