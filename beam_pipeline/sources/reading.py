"""Reading the documents of a work unit.

A format is a module with a function `read(file, part, options, columns)` that yields `Records`. To add a format, write
its module, add it to `FORMATS`, and define in `plan._cut_files` how its files are cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import arrow, jsonl, parquet, text
from beam_pipeline.sources.columns import require_columns
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.content import open_text
from beam_pipeline.sources.lines import line_number
from beam_pipeline.sources.opening import open_parts
from beam_pipeline.sources.units import BadRecord, DocumentBatch, Records, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa
from beam_pipeline.support.errors import DataError, UsageError, one_line
from beam_pipeline.support.file_errors import is_service_error
from beam_pipeline.support.hashing import place_hashes

FORMATS = {"text": text, "jsonl": jsonl, "parquet": parquet, "arrow": arrow}

_LINE_FORMATS = ("text", "jsonl")
_MAX_LINE_NUMBER_BYTES = 1 << 30


def read_unit(
    unit: WorkUnit,
    options: InputConfig,
    advance: Callable[[float], None] = lambda done: None,
    columns: Sequence[str] = (),
) -> Iterator[DocumentBatch]:
    """Yields the unit's documents, in order.

    Args:
        unit: The unit.
        options: How to read it.
        advance: Called before each batch with about how many of the unit's bytes are read.
        columns: Other keys or columns of the records to read; None is the value of those that a record lacks.

    Raises:
        DataError: If a file can no longer be read, or is broken.
        UsageError: If a file is not of the unit's format.
    """
    files = open_parts(unit)
    has_lines = unit.format in _LINE_FORMATS
    # Lines are counted by the bytes of the parts, before decompression, and tables by the bytes of the texts.
    scale = unit.bytes / max(1, sum(part.end - part.start for part in unit.parts)) if has_lines else 1.0
    before = 0
    for part in unit.parts:
        path = unit.root + part.name
        try:
            with next(files) as file:
                stream = file
                begin, size, texts = part.start, part.end - part.start, 0
                if has_lines and part.start == 0:
                    stream = open_text(file, path, unit.format, options)
                if isinstance(stream, DecompressedFile):
                    part = replace(part, end=None)
                for records in FORMATS[unit.format].read(stream, part, options, columns):
                    texts += int(records.texts.sizes.sum())
                    advance(scale * (before + (min(file.tell() - begin, size) if has_lines else texts)))
                    yield _make_batch(unit, part.name, records, options.seed)
            before += size if has_lines else texts
        except EOFError as error:
            raise DataError(f"{path}: {error}; the file has changed since") from error
        except Exception as error:
            if not (isinstance(error, OSError | pa.ArrowException) or is_service_error(error)):
                raise
            raise DataError(f"{path}: cannot be read: {one_line(error)}") from error


def check_columns(unit: WorkUnit, columns: Sequence[str]) -> None:
    """Checks that a unit's first file can have these columns, to report misspelled names before a run.

    Raises:
        UsageError: If it is text, or a table without one of them.
    """
    path = unit.root + unit.parts[0].name
    if unit.format == "text":
        raise UsageError(f"{path}: is text, which has no column {columns[0]!r}; use jsonl or parquet files")
    if unit.format in ("parquet", "arrow"):
        with filesystem.open_file(path) as file:
            require_columns(path, FORMATS[unit.format].schema_of(file), columns)


def describe(unit: WorkUnit, record: BadRecord) -> str:
    """Describes a bad record in one sentence: the file, the line and byte or the row, and the reason."""
    return f"{describe_place(unit, record.name, record.place)}: {record.reason}"


def describe_place(unit: WorkUnit, name: str, place: int) -> str:
    """Describes a document's place: the file, and its line and byte, or its row.

    This is for error messages, so it does not fail if the file cannot be read, and it determines line numbers only
    within the first GiB.
    """
    path = unit.root + name
    if unit.format not in _LINE_FORMATS:
        return f"{path}, row {place} (counted from 0)"
    codec = codec_of(path)
    position = f"byte {place}" + (" of its content" if codec else "")
    if place <= _MAX_LINE_NUMBER_BYTES:
        with contextlib.suppress(OSError, DataError), filesystem.open_file(path) as file:
            number = line_number(DecompressedFile(file, codec, path) if codec else file, place)
            position = f"line {number} ({position})"
    return f"{path}, {position}"


def _make_batch(unit: WorkUnit, name: str, records: Records, seed: int) -> DocumentBatch:
    """Selects the unit's share of the records and leaves out blank ones."""
    bad_records, blank = records.bad_records, records.texts.are_blank()
    in_share = np.ones(len(blank), bool)
    if unit.share < 1:
        in_share = _in_share(records.places, unit.share, seed, name)
        places = np.array([record.place for record in bad_records], np.int64)
        bad_records = [
            bad_records[index] for index in np.flatnonzero(_in_share(places, unit.share, seed, name))
        ]
    batch = DocumentBatch(
        name,
        records.texts,
        records.places,
        int(np.count_nonzero(blank & in_share)),
        bad_records,
        records.crc,
        columns=records.columns,
    )
    return batch.without(np.flatnonzero(blank | ~in_share))


def _in_share(places: np.ndarray, share: float, seed: int, name: str) -> np.ndarray:
    """Determines whether each document is in a share of this size, by a seeded hash of its place: bool [places]."""
    return place_hashes("share", seed, name, places) < np.uint64(int(share * 2**64))
