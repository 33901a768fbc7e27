"""Parquet files: a list column for each feature, in row groups of bounded size.

The bytes depend on the version of pyarrow, which also writes its name into each file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.records import RecordError
from beam_pipeline.formats.base import RowFormat, feature_columns, value_type
from beam_pipeline.rows.blocks import RowBlock

_VALUES_PER_GROUP = 1 << 21  # of each column: 4096 rows of 512 tokens, which take 8 MiB decoded
_DICTIONARY_BYTES = 1 << 20  # Arrow's default


class Parquet(RowFormat):
    name = "parquet"

    def encode(self, block: RowBlock) -> Iterator[bytes]:
        file = _Pieces()
        schema = pa.schema([pa.field(name, self._type(name), nullable=False) for name in self.form.features])
        rows = max(1, _VALUES_PER_GROUP // self.form.max_length)
        with pq.ParquetWriter(
            file,
            schema,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            # All ids in a dictionary: each value then takes as many bits as the vocabulary needs.
            use_dictionary=True,
            dictionary_pagesize_limit=max(_DICTIONARY_BYTES, 4 * self.form.vocab_size),
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for first in range(0, len(block), rows):
                writer.write_table(self._table(block.take(slice(first, first + rows)), schema))
                yield file.take()
        yield file.take()

    def decode(
        self, file: BinaryIO, path: str, first: int = 0, count: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            if sorted(parquet.schema_arrow.names) != sorted(self.form.features):
                raise RecordError(
                    f"{path}: the columns are {parquet.schema_arrow.names}, not {list(self.form.features)}"
                )
            end = parquet.metadata.num_rows if count is None else first + count
            begin = 0  # the number of the group's first row
            for group in range(parquet.num_row_groups):
                rows = parquet.metadata.row_group(group).num_rows
                wanted = slice(max(0, first - begin), max(0, end - begin))
                if wanted.start < min(rows, wanted.stop):
                    table = parquet.read_row_group(group)
                    yield {name: self._values(table, name, path)[wanted] for name in self.form.features}
                begin += rows
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"{path}: not an intact parquet file: {error}") from error

    def _type(self, name: str) -> pa.ListType:
        value = pa.from_numpy_dtype(value_type(name, self.form))
        return pa.list_(pa.field("element", value, nullable=False))

    def _table(self, block: RowBlock, schema: pa.Schema) -> pa.Table:
        offsets = np.arange(len(block) + 1, dtype=np.int32) * self.form.max_length
        columns = feature_columns(block, self.form.features)
        arrays = []
        for name in schema.names:
            kind = schema.field(name).type
            values = np.ascontiguousarray(columns[name]).reshape(-1)
            values = values.astype(kind.value_type.to_pandas_dtype(), copy=False)
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=kind))
        return pa.Table.from_arrays(arrays, schema=schema)

    def _values(self, table: pa.Table, name: str, path: str) -> np.ndarray:
        """Returns a column as int64 [rows, max_length]."""
        column = table.column(name).combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        expected = self._type(name)
        if not pa.types.is_list(column.type) or column.type.value_type != expected.value_type:
            raise RecordError(f"{path}: {name} has the type {column.type}, not {expected}")
        values = column.flatten()
        if column.null_count or values.null_count:
            raise RecordError(f"{path}: {name} has null values")
        lengths = np.diff(np.asarray(column.offsets))
        if (lengths != self.form.max_length).any():
            wrong = lengths[lengths != self.form.max_length][0]
            raise RecordError(f"{path}: a row has {wrong} values of {name}, not {self.form.max_length}")
        return np.asarray(values).astype(np.int64).reshape(-1, self.form.max_length)


class _Pieces(io.RawIOBase):
    """Collects what a writer writes, until it is taken."""

    def __init__(self):
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Does nothing: the writer closes its file before the last part is taken."""

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


FORMAT = Parquet
