"""The folder beside the splits that lists the removed documents of each work unit, in a parquet file per unit.

With `--decontaminate`, it also has the report of what was found of each benchmark, and with `--dry_run` the counts.

A file has a row for each document and rule that removes it: the document's path and place, its number in the unit, the
rule, the value that it measured, and its evidence (JSON). With `--keep_columns`, the struct `columns` has those of the
record. A file does not contain the text, which the source still has.
"""

from __future__ import annotations

import io
import re
from functools import cache

import numpy as np

from beam_pipeline.curation.removals import Removals, removals_schema
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa, pq
from tokenmill_reader.format.json_text import parse_own_json

FOLDER = "removed"
FILE_NAME = re.compile(r"(unit-\d{6,}\.parquet|_contamination\.json|_dry_run\.json)(\.tmp)?")
REPORT_PATH = f"{FOLDER}/_contamination.json"
DRY_RUN_PATH = f"{FOLDER}/_dry_run.json"
_KEYS = (
    {"options", "benchmarks", "common_ngrams"},
    {"excluded", "removed"},
    {"excluded", "removed", "edited"},
)

COLUMNS = "columns"
"""The column with those of `--keep_columns`, which the schema lacks: a struct of texts."""


@cache
def _schema() -> pa.Schema:
    return pa.schema([("path", pa.string()), ("place", pa.int64()), *removals_schema()])


def removed_path(output: str, unit: int) -> str:
    """Returns the path of the file of a unit's removed documents."""
    return filesystem.join(output, FOLDER, f"unit-{unit:06d}.parquet")


def write_removed(
    path: str, removals: Removals, paths: list[str], places: np.ndarray, columns: pa.Table | None = None
) -> None:
    """Writes the file of a unit's removed documents.

    Args:
        path: The file.
        removals: The unit's removals.
        paths: The file of each of `removals.documents`.
        places: int64, the place of each of `removals.documents`, as in `DocumentBatch.places`.
        columns: The `column_table` of `removals.documents`; None if no columns are kept.
    """
    documents = removals.table["document"].to_numpy()
    index = np.searchsorted(removals.documents, documents)
    schema = _schema()
    table = removals.table.add_column(0, schema.field("path"), [[paths[i] for i in index.tolist()]])
    table = table.add_column(1, schema.field("place"), pa.array(places[index], pa.int64()))
    table = table.cast(schema)
    if columns is not None:
        struct = columns.take(pa.array(index)).cast(
            pa.schema([(name, pa.string()) for name in columns.schema.names])
        )
        table = table.append_column(COLUMNS, struct.to_struct_array())
    file = io.BytesIO()
    pq.write_table(table, file)
    filesystem.write_bytes(path, file.getvalue())


def read_removed(path: str) -> Removals | None:
    """Returns the removals that a file lists, or None if there is no such file."""
    if not filesystem.exists(path):
        return None
    with filesystem.open_file(path) as file:
        return Removals(pq.read_table(file, columns=_schema().names[2:]))


def is_removed_file(path: str) -> bool:
    """Determines by its columns or keys whether a file is one that `write_removed` wrote, or the report."""
    try:
        if path.endswith(".json"):
            return parse_own_json(filesystem.read_bytes(path)).keys() in _KEYS
        with filesystem.open_file(path) as file:
            schema = pq.read_schema(file)
        own = _schema()
        if len(schema) > len(own) and _is_kept(schema.field(len(own))):
            schema = schema.remove(len(own))
        return schema.equals(own)
    except (pa.ArrowException, OSError, ValueError, AttributeError):
        return False


def _is_kept(field: pa.Field) -> bool:
    return (
        field.name == COLUMNS
        and pa.types.is_struct(field.type)
        and all(item.type == pa.string() for item in field.type)
    )
