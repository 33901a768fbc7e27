"""The text column of a table (parquet, arrow): its supported types, and its values as records."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np

from beam_pipeline.native.texts import is_utf8
from beam_pipeline.sources.lines import undecodable
from beam_pipeline.sources.units import BadRecord, Records
from beam_pipeline.support.arrow import pa, pc
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.texts import READ_BEYOND, Texts
from tokenmill_reader.console.spelling import suggestion

PIECE_BYTES = 4 << 20


def column_paths(source: str, schema: pa.Schema, key: str) -> list[tuple[str, ...]]:
    """Returns the columns that `--text_key` names: the name of each, and the names of the fields within structs.

    See `text_keys` for the meaning of a key.

    Raises:
        UsageError: If a column is missing, or contains neither strings nor lists of strings.
    """
    return [
        _column_path(source, schema, column) for column in ([key] if key in schema.names else key.split(","))
    ]


def _column_path(source: str, schema: pa.Schema, key: str) -> tuple[str, ...]:
    path = (key,) if key in schema.names else tuple(key.split("."))
    column_type: pa.DataType = pa.struct(schema)
    for name in path:
        if not pa.types.is_struct(column_type) or [field.name for field in column_type].count(name) != 1:
            raise UsageError(
                f"{source}: has no column {key!r} (set by --text_key); its columns are {_join_names(schema.names)}"
                f"{suggestion(key, schema.names)}"
            )
        column_type = column_type.field(name).type
    item = column_type.value_type if _is_list(column_type) else column_type
    if not _is_text(item):
        texts = [field.name for field in schema if _is_text(field.type)]
        raise UsageError(
            f"{source}: its column {key!r} (set by --text_key) has type {column_type}, not string; its string columns "
            f"are {_join_names(texts)}"
        )
    return path


def text_column(batch: pa.RecordBatch, paths: Sequence[tuple[str, ...]], separator: str) -> pa.Array:
    """Returns the texts of a batch: of a text type, or dictionary-encoded. See `text_keys` for texts that are joined.

    >>> batch = pa.record_batch({"title": ["a", "", None], "text": ["b", "c", None]})
    >>> text_column(batch, [("title",), ("text",)], ": ").to_pylist()
    ['a: b', 'c', None]

    Args:
        batch: The table's rows.
        paths: The columns, as `column_paths` returns them.
        separator: The string between joined texts.
    """
    columns = []
    for name, *fields in paths:
        column = batch.column(name)
        for field in fields:
            column = pc.struct_field(column, field)
        if _is_list(column.type):
            column = pc.binary_join(column.cast(pa.list_(pa.string())), separator)
        columns.append(column)
    if len(columns) == 1:
        return columns[0]
    columns = [column.cast(pa.large_string()) for column in columns]
    missing = functools.reduce(pc.and_, (column.is_null() for column in columns))
    joined = functools.reduce(
        functools.partial(_join_pairs, separator), (pc.fill_null(column, "") for column in columns)
    )
    return pc.if_else(missing, None, joined)


def _join_pairs(separator: str, first: pa.Array, second: pa.Array) -> pa.Array:
    """Joins the two texts of each row unless one of them is empty.

    Arrow's binary_join_element_wise with null_handling="skip" loses rows without any text.
    """
    joined = pc.binary_join_element_wise(first, second, pa.scalar(separator, pa.large_string()))
    nonempty = pc.if_else(pc.equal(pc.binary_length(first), 0), second, first)
    has_both = pc.and_(pc.greater(pc.binary_length(first), 0), pc.greater(pc.binary_length(second), 0))
    return pc.if_else(has_both, joined, nonempty)


def _is_list(column_type: pa.DataType) -> bool:
    return pa.types.is_list(column_type) or pa.types.is_large_list(column_type)


def _is_text(column_type: pa.DataType) -> bool:
    value = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
    types = pa.types
    # A column that holds only nulls, such as an empty table's, may have the type null.
    is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(is_kind(value) for is_kind in is_text)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") or "none"


def require_columns(source: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises UsageError if a table lacks one of the columns of `--keep_columns`."""
    for name in columns:
        if schema.names.count(name) != 1:
            raise UsageError(
                f"{source}: has no column {name!r} (set by --keep_columns, --record_columns or --url_column); its "
                f"columns are {_join_names(schema.names)}{suggestion(name, schema.names)}"
            )


def present_columns(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Returns the columns that a table has. Those of others are null: a corpus may have tables of several kinds."""
    return [name for name in columns if schema.names.count(name) == 1]


def with_columns(records: Records, batch: pa.RecordBatch, first_row: int, columns: Sequence[str]) -> Records:
    """Adds the values of columns to records, None for columns that the table lacks.

    The batch contains the rows of the records, and begins with the row `first_row`.
    """
    if not columns:
        return records
    rows = pa.array(records.places - first_row)
    values = {
        name: _python_values(batch.column(name).take(rows)) for name in present_columns(batch.schema, columns)
    }
    return replace(records, columns={name: values.get(name, [None] * len(rows)) for name in columns})


def _python_values(column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()
    except ValueError:  # invalid UTF-8, or a type that only pandas represents, such as nanoseconds
        if _is_text(column.type):
            contents = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
            return [None if content is None else content.decode(errors="replace") for content in contents]
        return column.cast(pa.string()).to_pylist()


def split_column(column: pa.Array) -> Iterator[pa.Array]:
    """Splits a column into slices of at most 4 MiB of decoded text. A larger value is a slice of its own.

    Args:
        column: The texts, of a type that `text_column` returns; it may be dictionary-encoded.
    """
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    # binary_length supports neither null columns nor string views.
    sizes = pc.binary_length(values.cast(pa.large_binary()) if _needs_cast(values.type) else values)
    if values is not column:
        sizes = sizes.take(column.indices)
    ends = np.cumsum(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False).astype(np.int64))
    start, start_byte = 0, 0
    while start < len(column):
        end = max(start + 1, int(np.searchsorted(ends, start_byte + PIECE_BYTES, side="right")))
        yield column.slice(start, end - start)
        start, start_byte = end, int(ends[end - 1])


def _needs_cast(column_type: pa.DataType) -> bool:
    return pa.types.is_null(column_type) or pa.types.is_string_view(column_type)


def column_records(name: str, column: pa.Array, first_row: int, errors: str = "strict") -> Records:
    """Converts the values of a text column to records. Nulls and values with invalid UTF-8 are bad records.

    Args:
        column: The texts, of a type that `text_column` returns.
        first_row: The row number of the column's first value.
        errors: See `InputConfig.encoding_errors`.
    """
    column = column.cast(pa.large_string())
    places = np.arange(first_row, first_row + len(column), dtype=np.int64)
    sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    contents = column.cast(pa.large_binary())
    data = _concatenate_values(contents)
    crc = google_crc32c.extend(google_crc32c.value(sizes.tobytes()), data)
    if not column.null_count and is_utf8(data):
        ends = np.cumsum(sizes)
        all_texts = Texts(data + bytes(READ_BEYOND), ends - sizes, ends)
        if not all_texts.divide_characters():
            return Records(all_texts, places, crc=crc)
    texts = [_decode(value, errors) for value in contents.to_pylist()]
    bad_records = []
    for index, text in enumerate(texts):
        if text is None:
            content = contents[index].as_py()
            reason = "null instead of a text" if content is None else undecodable(content)
            bad_records.append(BadRecord(name, int(places[index]), reason, content or b""))
    has_text = np.array([text is not None for text in texts], bool)
    texts = [text for text in texts if text is not None]
    return Records(Texts.of(texts), places[has_text], bad_records, crc)


def _concatenate_values(contents: pa.LargeBinaryArray) -> bytes:
    """Returns the bytes of all values."""
    _, offsets, data = contents.buffers()
    bounds = np.frombuffer(offsets, np.int64)[contents.offset :][: len(contents) + 1] if len(contents) else []
    return data[bounds[0] : bounds[-1]].to_pybytes() if data is not None and len(bounds) else b""


def _decode(content: bytes | None, errors: str) -> str | None:
    try:
        return None if content is None else content.decode(errors=errors)
    except UnicodeDecodeError:
        return None
