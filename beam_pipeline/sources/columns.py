"""The text column of a table (parquet, arrow): which types it may have, and its values as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.errors import UsageError
from beam_pipeline.sources.lines import invalid_utf8
from beam_pipeline.sources.units import BadRecord, Records

PIECE_BYTES = 4 << 20


def check_column(where: str, schema: pa.Schema, key: str) -> None:
    """Checks that a table has a column of text.

    Raises:
      UsageError: naming the columns, or the column's type.
    """
    if schema.names.count(key) != 1:
        raise UsageError(
            f"{where}: it has no column {key!r} (--text_key names it); its columns are {_listed(schema.names)}"
        )
    kind = schema.field(key).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    # A column of nulls alone, such as an empty table's, may have no other type.
    if not pa.types.is_null(kind) and not any(is_text(value) for is_text in _TEXT_TYPES):
        texts = [field.name for field in schema if any(is_text(field.type) for is_text in _TEXT_TYPES)]
        raise UsageError(
            f"{where}: its column {key!r} (--text_key) is of type {kind}, not a string; its string columns are "
            f"{_listed(texts)}"
        )


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") or "none"


def pieces(column: pa.Array) -> Iterator[pa.Array]:
    """The column in slices of at most 4 MiB of decoded text, or one value.

    Args:
      column: of a type that `check_column` accepts, dictionaries included.
    """
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    # A null column has no lengths; views have none either.
    sizes = pc.binary_length(values.cast(pa.large_binary()) if _without_length(values.type) else values)
    if values is not column:
        sizes = sizes.take(column.indices)
    ends = np.cumsum(pc.fill_null(sizes, 0).to_numpy(zero_copy_only=False).astype(np.int64))
    first, begin = 0, 0
    while first < len(column):
        last = max(first + 1, int(np.searchsorted(ends, begin + PIECE_BYTES, side="right")))
        yield column.slice(first, last - first)
        first, begin = last, int(ends[last - 1])


def _without_length(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or pa.types.is_string_view(kind)


def column_records(name: str, column: pa.Array, first: int) -> Records:
    """The values of a text column. Null, and bytes that are no UTF-8, are bad records.

    Args:
      name: the file's path below the plan's root.
      column: of a type that `check_column` accepts.
      first: the row number of its first value.
    """
    column = column.cast(pa.large_string())
    places = np.arange(first, first + len(column), dtype=np.int64)
    sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    contents = column.cast(pa.large_binary())
    try:
        texts = column.to_numpy(zero_copy_only=False).tolist()
        if not column.null_count:
            return Records(texts, places, sizes)
    except (pa.ArrowException, UnicodeDecodeError):
        texts = [_decoded(value) for value in contents.to_pylist()]
    bad = []
    for index, text in enumerate(texts):
        if text is None:
            content = contents[index].as_py()
            reason = "null, where a text is needed" if content is None else invalid_utf8(content)
            bad.append(BadRecord(name, int(places[index]), reason, content or b""))
    kept = np.array([text is not None for text in texts], bool)
    return Records([text for text in texts if text is not None], places[kept], sizes[kept], bad)


def _decoded(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None
