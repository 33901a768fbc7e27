"""Parquet files: a document per row, its text in one column. A work unit reads whole row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.errors import UsageError, one_line
from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources.columns import PIECE_BYTES, check_column, column_records, pieces
from beam_pipeline.sources.opening import open_footer
from beam_pipeline.sources.units import Part, Records

_PAGE_BUFFER = 4 << 20  # column chunks are read through a buffer of this size, not as wholes

# A text that begins as the one before it takes a few bytes in this encoding, whatever its length.
_MOST_PREFIXED_ROWS = 64


@dataclass(frozen=True)
class RowGroup:
    """What a file's footer says of one of its row groups: rows, and the bytes of their text."""

    rows: int
    bytes: int


def row_groups(path: str, size: int, text_key: str) -> list[RowGroup]:
    """The row groups of a file of `size` bytes. Reads its footer only.

    Raises:
      UsageError: where it is no parquet file, or has no such column of text.
    """
    try:
        with open_footer(path, size) as file:
            metadata = pq.read_metadata(pa.PythonFile(file, mode="r"))
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"--input: {path}: cannot be read as parquet: {one_line(error)}") from error
    check_column(path, metadata.schema.to_arrow_schema(), text_key)
    column = _column_index(metadata, text_key)
    return [
        RowGroup(group.num_rows, group.column(column).total_uncompressed_size)
        for group in map(metadata.row_group, range(metadata.num_row_groups))
    ]


def read(file: BinaryIO, part: Part, options: InputConfig) -> Iterator[Records]:
    """The rows of the row groups [part.start, part.end), a few MiB at a time.

    A footer gives the size of a column's pages, in which a dictionary's values count once, however many rows have them.
    So a dictionary stays one until its rows are cut into pieces by the size of their texts.
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
            for piece in pieces(batch.column(options.text_key)):
                yield column_records(part.name, piece, row)
                row += len(piece)


def _batch_rows(chunk: pq.ColumnChunkMetaData, rows: int) -> int:
    """How many rows to decode at once."""
    most = _MOST_PREFIXED_ROWS if "DELTA_BYTE_ARRAY" in chunk.encodings else 1 << 16
    return max(1, min(most, PIECE_BYTES * rows // max(1, chunk.total_uncompressed_size)))


def _column_index(metadata: pq.FileMetaData, text_key: str) -> int:
    """The number of the text's leaf column. A field `b` of a struct `a` has the path `a.b`, too, but another name."""
    leaves = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    return [leaf.path == leaf.name == text_key for leaf in leaves].index(True)
