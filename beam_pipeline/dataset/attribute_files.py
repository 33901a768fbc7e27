"""The folder of attributes that `annotate` writes: a parquet file per work unit, and a record of the whole."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from beam_pipeline.dataset.staging import STAGING
from beam_pipeline.options.curation_options import ATTRIBUTES_RECORD as RECORD
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa, pq
from beam_pipeline.support.errors import DataError, UsageError
from tokenmill_reader.format.json_text import parse_own_json

FORMAT = "tokenmill-attributes"
_FILE_NAME = re.compile(r"unit-\d{6,}\.parquet")
_KEY = b"tokenmill"
_RECORD_KEYS = {"fingerprint", "plan", "schema", "config"}


def unit_file(folder: str, unit: int) -> str:
    """Returns the path of the attributes of a unit."""
    return filesystem.join(folder, f"unit-{unit:06d}.parquet")


def plan_digest(units: Iterable[WorkUnit]) -> str:
    """Returns a hash of the work units that does not depend on the folder of the files."""
    lines = (json.dumps({**json.loads(unit.to_json()), "root": ""}, sort_keys=True) for unit in units)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def encode_unit(table: pa.Table, identity: Mapping[str, Any]) -> bytes:
    """Returns the content of a unit's file. `identity` is that of `finished_units.identity_of`."""
    file = io.BytesIO()
    metadata = {_KEY: json.dumps(identity, sort_keys=True).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), file, write_page_checksum=True)
    return file.getvalue()


def identity_of_file(path: str) -> dict[str, Any] | None:
    """Returns the identity of a unit's file; None if there is no such file, or it is another program's or damaged."""
    try:
        with filesystem.open_file(path) as file:
            return json.loads((pq.read_schema(file).metadata or {})[_KEY])
    except (OSError, pa.ArrowException, ValueError, KeyError):
        return None


def read_unit_file(folder: str, unit: int, fingerprint: str) -> pa.Table:
    """Reads the attributes of a unit.

    Raises:
        DataError: If the file is missing, damaged, or of another run than the one with this fingerprint.
    """
    path = unit_file(folder, unit)
    identity = identity_of_file(path)
    if identity is None or identity.get("fingerprint") != fingerprint or identity.get("unit") != unit:
        raise DataError(
            f"{path}: is missing, damaged or of another run than {RECORD}; run annotate again with --overwrite"
        )
    try:
        with filesystem.open_file(path) as file:
            return pq.read_table(file, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {error}; run annotate again with --overwrite") from error


def read_record(folder: str) -> dict[str, Any]:
    """Returns the record of finished attributes.

    Raises:
        UsageError: If there are none in the folder.
    """
    record = _own_record(folder)
    if record is None:
        raise UsageError(
            f"--attributes {folder}: contains no finished attributes; make them with annotate --output {folder}"
        )
    return record


def schema_of(record: Mapping[str, Any]) -> pa.Schema:
    """Returns the names and types of the attributes, as `describe_schema` wrote them."""
    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(record["schema"])))


def describe_schema(schemas: Iterable[pa.Schema]) -> dict[str, Any]:
    """Returns the entries of a record for the attributes of all units.

    Raises:
        DataError: If an attribute has types in several units that have no common one.
    """
    try:
        schema = pa.unify_schemas(
            [schema.remove_metadata() for schema in schemas], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise DataError(f"the attributes of the work units have no common types: {error}") from error
    return {
        "columns": {field.name: str(field.type) for field in schema},
        "schema": schema.serialize().to_pybytes().hex(),
    }


def claim(folder: str, fingerprint: str, *, overwrite: bool, resume: bool) -> bool:
    """Checks that `annotate` may write into a folder, and deletes what `overwrite` replaces.

    Returns:
        True if the attributes with this fingerprint are there, and `resume` asks to keep them.

    Raises:
        UsageError: If it contains anything else.
    """
    paths = [
        path for path in filesystem.list_folder(folder) if not _below(folder, path).startswith(f"{STAGING}/")
    ]
    foreign = [path for path in paths if not _is_own(folder, path)]
    if foreign:
        raise UsageError(
            f"--output {folder}: contains {foreign[0]}, which annotate did not write; choose an empty folder"
        )
    record = _own_record(folder)
    if overwrite:
        filesystem.delete(sorted(paths, key=lambda path: not path.endswith(RECORD)))
    elif record is not None and record["fingerprint"] != fingerprint:
        raise UsageError(
            f"--output {folder}: contains attributes of other input or options; choose an empty folder, or use "
            "--overwrite"
        )
    elif paths and not resume:
        raise UsageError(
            f"--output {folder}: contains attributes; use --resume to continue or keep them, or --overwrite to "
            "replace them"
        )
    return record is not None and resume


def _below(folder: str, path: str) -> str:
    return path[len(folder) :].lstrip("/")


def _is_own(folder: str, path: str) -> bool:
    name = _below(folder, path)
    if name == RECORD:
        return _own_record(folder) is not None
    return _FILE_NAME.fullmatch(name) is not None and identity_of_file(path) is not None


def _own_record(folder: str) -> dict[str, Any] | None:
    path = filesystem.join(folder, RECORD)
    if not filesystem.exists(path):
        return None
    try:
        record = parse_own_json(filesystem.read_bytes(path))
    except ValueError:
        return None
    is_own = isinstance(record, dict) and record.get("format") == FORMAT and record.keys() >= _RECORD_KEYS
    return record if is_own else None
