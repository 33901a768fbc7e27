"""Where documents come from: planning the input as work units, and reading a unit.

A format is a module with `read(file, part, options)`, which yields `Records`. To add one: write the module, name it
in `FORMATS`, and say in `plan._pieces` how its files are cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from google.api_core.exceptions import GoogleAPIError

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError, one_line
from beam_pipeline.hashing import place_hashes
from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources import arrow, jsonl, parquet, text
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.content import checked
from beam_pipeline.sources.lines import line_number
from beam_pipeline.sources.opening import open_parts
from beam_pipeline.sources.units import BadRecord, DocumentBatch, Records, WorkUnit

FORMATS = {"text": text, "jsonl": jsonl, "parquet": parquet, "arrow": arrow}

_LINE_FORMATS = ("text", "jsonl")
_MOST_FOR_LINE_NUMBER = 1 << 30


def read_unit(unit: WorkUnit, options: InputConfig) -> Iterator[DocumentBatch]:
    """The unit's documents, in order.

    Raises:
      DataError: where a file cannot be read any more, or is broken.
      UsageError: where a file is not of the unit's format.
    """
    files = open_parts(unit)
    for part in unit.parts:
        path = unit.root + part.name
        try:
            with next(files) as file:
                stream = file
                if unit.format in _LINE_FORMATS and part.start == 0:
                    stream = checked(file, path, unit.format, options)
                if isinstance(stream, DecompressedFile):
                    part = replace(part, end=None)
                for records in FORMATS[unit.format].read(stream, part, options):
                    yield _batch(unit, part.name, records, options.seed)
        except EOFError as error:
            raise DataError(f"{path}: {error}; it has changed since") from error
        except (OSError, pa.ArrowException, GoogleAPIError) as error:
            raise DataError(f"{path}: cannot be read: {one_line(error)}") from error


def describe(unit: WorkUnit, bad: BadRecord) -> str:
    """One sentence on a bad record: the file, the line, byte or row, and the reason."""
    return f"{describe_place(unit, bad.name, bad.place)}: {bad.reason}"


def describe_place(unit: WorkUnit, name: str, place: int) -> str:
    """Where a document stands: the file, and its line and byte, or its row.

    It is for error messages: so it does not fail itself, and looks for a line's number only in the first GiB.
    """
    path = unit.root + name
    if unit.format not in _LINE_FORMATS:
        return f"{path}, row {place} (counted from 0)"
    codec = codec_of(path)
    where = f"byte {place}" + (" of its content" if codec else "")
    if place <= _MOST_FOR_LINE_NUMBER:
        with contextlib.suppress(OSError, DataError), filesystem.open_file(path) as file:
            number = line_number(DecompressedFile(file, codec, path) if codec else file, place)
            where = f"line {number} ({where})"
    return f"{path}, {where}"


def _batch(unit: WorkUnit, name: str, records: Records, seed: int) -> DocumentBatch:
    """Of these records the unit's share, less the blank ones."""
    texts, bad = records.texts, records.bad
    if unit.share == 1 and all(texts) and not any(map(str.isspace, texts)):
        return DocumentBatch(name, texts, records.places, records.bytes, 0, bad)
    kept = range(len(texts))
    if unit.share < 1:
        kept = np.flatnonzero(_in_share(records.places, unit.share, seed, name)).tolist()
        places = np.array([record.place for record in bad], np.int64)
        bad = [bad[index] for index in np.flatnonzero(_in_share(places, unit.share, seed, name))]
    solid = [index for index in kept if texts[index] and not texts[index].isspace()]
    chosen = np.array(solid, np.int64)
    return DocumentBatch(
        name,
        [texts[index] for index in solid],
        records.places[chosen],
        records.bytes[chosen],
        len(kept) - len(solid),
        bad,
    )


def _in_share(places: np.ndarray, share: float, seed: int, name: str) -> np.ndarray:
    """Whether the documents at `places` belong to a share: bool [documents], by a seeded hash of each place."""
    return place_hashes("share", seed, name, places) < np.uint64(int(share * 2**64))
