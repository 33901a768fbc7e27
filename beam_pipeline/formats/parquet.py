"""Parquet files: a list column for each feature of rows, or the documents' ids, in row groups of bounded size, and a
column of texts for each of `--record_columns`.

The bytes depend on the version of pyarrow, which also writes its name into each file.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.formats.base import DocumentFormat, RowForm, RowFormat, feature_columns, value_type
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.sources.record_columns import table_schema

_VALUES_PER_GROUP = 1 << 21  # per column: 4096 rows of 512 tokens, which take 8 MiB decoded
_DOCUMENTS_PER_GROUP = 1 << 17
_DICTIONARY_BYTES = 1 << 20  # Arrow's default
_MAX_DICTIONARY_BYTES = 1 << 30  # a page's size is an int32


class Parquet(RowFormat):
    """Rows as parquet files with a list column for each feature."""

    name = "parquet"

    def encode(self, block: RowBlock) -> Iterator[bytes]:
        file = _PieceFile()
        rows = max(1, _VALUES_PER_GROUP // self.form.max_length)
        with _writer(file, self.form) as writer:
            for start in range(0, len(block), rows):
                writer.write_table(self._table(block.take(slice(start, start + rows)), writer.schema))
                yield file.take()
        yield file.take()

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        for table in _tables(file, path, self.form, first, count):
            features = {name: self._values(table, name, path) for name in self.form.features}
            columns = table.select(self.form.record_columns)
            yield features | {
                name: np.array(columns[name].to_pylist(), object) for name in columns.column_names
            }

    def _table(self, block: RowBlock, schema: pa.Schema) -> pa.Table:
        offsets = np.arange(len(block) + 1, dtype=np.int32) * self.form.max_length
        columns = feature_columns(block, self.form.features)
        arrays = [_lists(offsets, columns[name], schema.field(name).type) for name in self.form.features]
        return pa.Table.from_arrays([*arrays, *_texts(block.columns)], schema=schema)

    def _values(self, table: pa.Table, name: str, path: str) -> np.ndarray:
        """Returns a column as int64 [rows, max_length]."""
        values, lengths = _column(table, name, path, self.form)
        if (lengths != self.form.max_length).any():
            wrong_length = lengths[lengths != self.form.max_length][0]
            raise RecordError(
                f"{path}: a row has {wrong_length} values of {name}, not {self.form.max_length}"
            )
        return values.astype(np.int64).reshape(-1, self.form.max_length)


class ParquetDocuments(DocumentFormat):
    """Documents as parquet files with the list column input_ids."""

    name = "parquet"

    def write(self, blocks: Iterable[DocumentBlock], file: BinaryIO, index: BinaryIO | None) -> None:
        pieces = _PieceFile()
        with _writer(pieces, self.form) as writer:
            for group in _groups(blocks):
                offsets = np.append(0, np.cumsum(group.lengths, dtype=np.int32))
                ids = _lists(offsets, group.ids, writer.schema.field("input_ids").type)
                writer.write_table(pa.Table.from_arrays([ids, *_texts(group.columns)], schema=writer.schema))
                file.write(pieces.take())
        file.write(pieces.take())

    def read(
        self, file: BinaryIO, index: BinaryIO | None, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[DocumentBlock]:
        for table in _tables(file, path, self.form, first, count):
            ids, lengths = _column(table, "input_ids", path, self.form)
            if (lengths < 1).any():
                raise RecordError(f"{path}: a document has no tokens")
            columns = table.select(self.form.record_columns) if self.form.record_columns else None
            yield self._block(
                ids, lengths, path, columns and columns.cast(table_schema(columns.column_names))
            )


def _groups(blocks: Iterable[DocumentBlock]) -> Iterator[DocumentBlock]:
    """Divides the documents into row groups. The groups do not depend on the blocks."""
    remainder: DocumentBlock | None = None
    for block in blocks:
        if remainder is not None:
            block = DocumentBlock.concatenate([remainder, block])
        ends = np.cumsum(block.lengths, dtype=np.int64)
        start = 0
        while True:
            first_value = int(ends[start - 1]) if start else 0
            end = min(
                int(np.searchsorted(ends, first_value + _VALUES_PER_GROUP, "right")),
                start + _DOCUMENTS_PER_GROUP,
            )
            if end == len(block):  # the next block may have more documents of this group
                break
            end = max(end, start + 1)
            yield block.cut(start, end)
            start = end
        remainder = block.cut(start, len(block))
    if remainder is not None and len(remainder):
        yield remainder


def _writer(file: _PieceFile, form: RowForm) -> pq.ParquetWriter:
    features = [pa.field(name, _type(name, form), nullable=False) for name in form.features]
    schema = pa.schema([*features, *table_schema(form.record_columns)])
    return pq.ParquetWriter(
        file,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        # All ids in a dictionary: each value then takes as many bits as the vocabulary needs.
        use_dictionary=True,
        dictionary_pagesize_limit=max(_DICTIONARY_BYTES, min(4 * form.vocab_size, _MAX_DICTIONARY_BYTES)),
        write_statistics=False,
        write_page_checksum=True,
        store_schema=False,
    )


def _tables(file: BinaryIO, path: str, form: RowForm, first: int, count: int | None) -> Iterator[pa.Table]:
    """Yields records, those of a row group at a time, without the `first` ones, and at most `count`."""
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        names = [*form.features, *form.record_columns]
        if sorted(parquet.schema_arrow.names) != sorted(names):
            raise RecordError(f"{path}: the columns are {parquet.schema_arrow.names}, not {names}")
        for name in form.record_columns:
            if not pa.types.is_string(parquet.schema_arrow.field(name).type):
                raise RecordError(f"{path}: the column {name} has no texts")
        end = parquet.metadata.num_rows if count is None else first + count
        group_start = 0  # the number of the group's first record
        for group in range(parquet.num_row_groups):
            records = parquet.metadata.row_group(group).num_rows
            start, stop = max(0, first - group_start), min(records, end - group_start)
            if start < stop:
                yield parquet.read_row_group(group).slice(start, stop - start)
            group_start += records
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{path}: not an intact parquet file: {error}") from error


def _column(table: pa.Table, name: str, path: str, form: RowForm) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of a column, one after the other, and the number of values in each record."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    expected_type = _type(name, form)
    if not pa.types.is_list(column.type) or column.type.value_type != expected_type.value_type:
        raise RecordError(f"{path}: {name} has the type {column.type}, not {expected_type}")
    values = column.flatten()
    if column.null_count or values.null_count:
        raise RecordError(f"{path}: {name} has null values")
    return np.asarray(values), np.diff(np.asarray(column.offsets))


def _type(name: str, form: RowForm) -> pa.ListType:
    value = pa.from_numpy_dtype(value_type(name, form))
    return pa.list_(pa.field("element", value, nullable=False))


def _texts(columns: pa.Table | None) -> list[pa.Array]:
    """Returns columns of records. Each is one array, so that the pages do not depend on how it was put together."""
    return [] if columns is None else [column.combine_chunks() for column in columns.columns]


def _lists(offsets: np.ndarray, values: np.ndarray, list_type: pa.ListType) -> pa.ListArray:
    # Arrow's names of whole numbers are NumPy's; its own conversion of types imports pandas.
    values = np.ascontiguousarray(values).reshape(-1).astype(str(list_type.value_type), copy=False)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=list_type)


class _PieceFile(io.RawIOBase):
    """A file that collects the bytes that are written, until they are taken."""

    def __init__(self):
        self._pieces: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Does nothing: the writer closes its file before the last part is taken."""

    def take(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data


ROW_FORMAT = Parquet
DOCUMENT_FORMAT = ParquetDocuments
