"""The text column of a table (parquet, arrow): its supported types, and its values as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.errors import UsageError
from beam_pipeline.sources.lines import invalid_utf8
from beam_pipeline.sources.units import BadRecord, Records

PIECE_BYTES = 4 << 20


def check_column(where: str, schema: pa.Schema, key: str) -> None:
    """Checks that a table has a text column of that name.

    Raises:
        UsageError: If the column is missing, or is not of a string type.
    """
    if schema.names.count(key) != 1:
        raise UsageError(
            f"{where}: has no column {key!r} (set by --text_key); its columns are {_join_names(schema.names)}"
        )
    kind = schema.field(key).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    # A column that holds only nulls, such as an empty table's, may have the type null.
    if not pa.types.is_null(kind) and not any(is_text(value) for is_text in _TEXT_TYPES):
        texts = [field.name for field in schema if any(is_text(field.type) for is_text in _TEXT_TYPES)]
        raise UsageError(
            f"{where}: its column {key!r} (set by --text_key) has type {kind}, not string; its string columns are "
            f"{_join_names(texts)}"
        )


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") or "none"


def split_column(column: pa.Array) -> Iterator[pa.Array]:
    """Splits a column into slices of at most 4 MiB of decoded text. A larger value is a slice of its own.

    Args:
        column: Of a type that `check_column` accepts; it may be dictionary-encoded.
    """
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    # binary_length supports neither null columns nor string views.
    sizes = pc.binary_length(values.cast(pa.large_binary()) if _needs_cast(values.type) else values)
    if values is not column:
        sizes = sizes.take(column.indices)
    ends = np.cumsum(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False).astype(np.int64))
    first, begin = 0, 0
    while first < len(column):
        last = max(first + 1, int(np.searchsorted(ends, begin + PIECE_BYTES, side="right")))
        yield column.slice(first, last - first)
        first, begin = last, int(ends[last - 1])


def _needs_cast(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or pa.types.is_string_view(kind)


def column_records(name: str, column: pa.Array, first: int) -> Records:
    """Converts the values of a text column to records. Nulls and values with invalid UTF-8 are bad records.

    Args:
        column: Of a type that `check_column` accepts.
        first: The row number of the column's first value.
    """
    column = column.cast(pa.large_string())
    places = np.arange(first, first + len(column), dtype=np.int64)
    sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    contents = column.cast(pa.large_binary())
    crc = google_crc32c.extend(google_crc32c.value(sizes.tobytes()), _joined(contents))
    try:
        texts = column.to_numpy(zero_copy_only=False).tolist()
        if not column.null_count:
            return Records(texts, places, sizes, crc=crc)
    except (pa.ArrowException, UnicodeDecodeError):
        texts = [_decoded(value) for value in contents.to_pylist()]
    bad = []
    for index, text in enumerate(texts):
        if text is None:
            content = contents[index].as_py()
            reason = "null instead of a text" if content is None else invalid_utf8(content)
            bad.append(BadRecord(name, int(places[index]), reason, content or b""))
    kept = np.array([text is not None for text in texts], bool)
    return Records([text for text in texts if text is not None], places[kept], sizes[kept], bad, crc)


def _joined(contents: pa.LargeBinaryArray) -> bytes:
    """Returns the bytes of all values."""
    _, offsets, data = contents.buffers()
    bounds = np.frombuffer(offsets, np.int64)[contents.offset :][: len(contents) + 1] if len(contents) else []
    return data[bounds[0] : bounds[-1]].to_pybytes() if data is not None and len(bounds) else b""


def _decoded(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
