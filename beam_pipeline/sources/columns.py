"""The text column of a table (parquet, arrow): which types it may have, and its values as records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.errors import UsageError
from beam_pipeline.sources.lines import invalid_utf8
from beam_pipeline.sources.units import BadRecord, Records


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
