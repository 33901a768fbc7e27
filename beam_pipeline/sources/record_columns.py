"""Columns of records that travel with documents, into the list of removed documents and into shards: nullable texts.

Texts, so that all work units of a run agree about the type, whatever records they have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline.support.arrow import pa


def column_table(columns: Mapping[str, Sequence[Any]], names: Sequence[str]) -> pa.Table:
    """Returns values of records as texts: large_string, null for None.

    >>> column_table({"url": ["a.org", None], "tags": [["x"], 2]}, ["tags", "url"]).to_pylist()
    [{'tags': '["x"]', 'url': 'a.org'}, {'tags': '2', 'url': None}]

    Args:
        columns: The values by name, as in `DocumentBatch.columns`.
        names: The columns of the table, in their order.
    """
    arrays = [pa.array(map(_text, columns[name]), pa.large_string()) for name in names]
    return pa.Table.from_arrays(arrays, schema=table_schema(names))


def table_schema(names: Sequence[str]) -> pa.Schema:
    """Returns the schema of a `column_table`."""
    return pa.schema([(name, pa.large_string()) for name in names])


def _text(value: Any) -> str | None:
    """Returns a text as it is, but without surrogates, and other values as JSON."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return without_surrogates(value)


def without_surrogates(value: Any) -> Any:
    """Returns a value. In a text, halves of surrogate pairs, which have no UTF-8, are escaped, as \\ud800."""
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode(errors="backslashreplace").decode()


def table_to_bytes(table: pa.Table) -> bytes:
    """Returns equal bytes for equal tables."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


def table_from_bytes(data: bytes | memoryview) -> pa.Table:
    """Inverts `table_to_bytes`, without copying."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
