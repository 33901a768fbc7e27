"""Where documents come from: planning the input as work units, and reading a unit.

A format is a module with `read(file, part, options)`, which yields `DocumentBatch`es. To add one: write the module,
name it in `FORMATS`, and say in `plan._cut` how its files are cut into parts.
"""

from __future__ import annotations

from collections.abc import Iterator

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.sources import jsonl, text
from beam_pipeline.sources.lines import line_number
from beam_pipeline.sources.units import BadRecord, DocumentBatch, ReadOptions, WorkUnit

FORMATS = {"text": text, "jsonl": jsonl}

_LINE_FORMATS = ("text", "jsonl")


def read_unit(unit: WorkUnit, options: ReadOptions) -> Iterator[DocumentBatch]:
    """The unit's documents, in order.

    Raises:
      DataError: where a file cannot be read any more.
    """
    for part in unit.parts:
        path = unit.root + part.name
        try:
            with filesystem.open_file(path) as file:
                yield from FORMATS[unit.format].read(file, part, options)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}") from error


def describe(unit: WorkUnit, bad: BadRecord) -> str:
    """One sentence on a bad record: the file, the line or byte, and the reason."""
    return f"{describe_place(unit, bad.name, bad.place)}: {bad.reason}"


def describe_place(unit: WorkUnit, name: str, place: int) -> str:
    """Where a document or a record of the unit stands: the file, and the line or byte in it."""
    path = unit.root + name
    described = f"byte {place}"
    if unit.format in _LINE_FORMATS:
        with filesystem.open_file(path) as file:
            described = f"line {line_number(file, place)} ({described})"
    return f"{path}, {described}"
