"""A small, even sample of an input, for estimates: documents from evenly spaced windows of it."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError
from beam_pipeline.hashing import key64
from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources import parquet, read_unit
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.plan import Plan
from beam_pipeline.sources.units import DocumentBatch, WorkUnit

_MIN_WINDOWS = 256
_MAX_WINDOW = 256 << 10
_PREFIX = 1 << 20  # of a compressed file, to find out how well it is compressed
_PREFIX_BLOCK = 16 << 10
_TABLES = ("parquet", "arrow")
_BYTES_AROUND_TEXT = 4  # the length or offset of each text in a table
_MOSTLY_DISTINCT = 0.9


@dataclass(frozen=True)
class Window:
    """Consecutive documents."""

    unit: WorkUnit
    batches: list[DocumentBatch]
    planned: float
    """How many of the plan's bytes they are."""
    seconds: float
    """How long it took to read them."""


def windows(planned: Plan, config: InputConfig, *, sample_bytes: int, seed: int) -> Iterator[Window]:
    """Yields the documents of evenly spaced windows of the input, which together have about `sample_bytes`.

    The seed determines where the first window is. Of a compressed file or a row group, a window is always the
    beginning. If the input has no more than `sample_bytes`, its units are the windows.

    Raises:
        DataError: If a file can no longer be read, or is broken.
    """
    if planned.bytes <= sample_bytes:
        for unit in planned.units:
            began = time.perf_counter()
            batches = list(read_unit(unit, config))
            yield Window(unit, batches, unit.bytes, time.perf_counter() - began)
        return
    number = max(_MIN_WINDOWS, sample_bytes // _MAX_WINDOW)
    ends = np.cumsum([unit.bytes for unit in planned.units])
    places = (np.arange(number) + key64("windows", seed) / 2**64) * planned.bytes / number
    starts = []
    for place, index in zip(places, np.searchsorted(ends, places, side="right"), strict=True):
        unit = planned.units[index]
        starts.append(_locate(unit, place - (ends[index] - unit.bytes), config))
    sizes = {file.path: file.size for file in planned.files}
    wanted = consumed = 0.0
    for start, same in itertools.groupby(starts):  # windows with the same start are one larger window
        size = sample_bytes / number * len(list(same))
        wanted += size
        if consumed > 2 * wanted:  # documents are larger than windows, so fewer are enough
            continue
        window = _read(start, size, config, sizes)
        while not window.batches and start.unit.index + 1 < len(planned.units):
            # A document spans the rest of the unit.
            start = _locate(planned.units[start.unit.index + 1], 0.0, config)
            window = _read(start, size, config, sizes)
        consumed += window.planned
        yield window


@dataclass(frozen=True)
class _Start:
    """Where a window begins."""

    unit: WorkUnit
    part: int
    """Index of the first part."""
    skipped: int
    """How much of that part is before the window: bytes, rows or row groups."""


def _locate(unit: WorkUnit, offset: float, config: InputConfig) -> _Start:
    """Returns the nearest start at or before an offset in planned bytes of the unit."""
    extents = np.array([part.end - part.start for part in unit.parts])
    ends = np.cumsum(extents)
    within = offset / unit.bytes * int(ends[-1])
    number = int(np.searchsorted(ends, within, side="right"))
    skipped = int(within - (ends[number] - extents[number]))
    return _Start(unit, number, skipped if _can_skip(unit, number, config) else 0)


def _can_skip(unit: WorkUnit, number: int, config: InputConfig) -> bool:
    """Returns whether a part can be read from another place than its beginning."""
    whole_file = unit.format == "text" and config.document == "file"
    return not whole_file and not codec_of(unit.root + unit.parts[number].name)


def _read(start: _Start, wanted: float, config: InputConfig, sizes: Mapping[str, int]) -> Window:
    """Reads a window.

    Args:
        start: Where it begins.
        wanted: Its size in planned bytes.
        config: How to read it.
        sizes: The size of each file, by path.
    """
    unit, number = start.unit, start.part
    part = replace(unit.parts[number], start=unit.parts[number].start + start.skipped)
    path = unit.root + part.name
    # Planned bytes per byte of content, or per row.
    per_place = unit.bytes / sum(each.end - each.start for each in unit.parts)
    ends = [part.end]
    if unit.format == "parquet":
        per_place = parquet.bytes_per_row(path, sizes[path], config.text_key, part.start)
    elif codec_of(path):
        per_place /= _expansion(path)
    elif _can_skip(unit, number, config):
        # What is read at a time is much larger than a window, so end it early, unless no document begins in it.
        extent = math.ceil(wanted / per_place)
        ends = [min(part.end, part.start + extent * factor) for factor in (1, 32)] + ends
    began = time.perf_counter()
    for end in ends:
        first = replace(part, end=end)
        batches, consumed = _take(
            replace(unit, parts=(first, *unit.parts[number + 1 :])), wanted, per_place, config
        )
        if batches:
            break
    return Window(unit, batches, consumed, time.perf_counter() - began)


def _take(
    unit: WorkUnit, wanted: float, per_place: float, config: InputConfig
) -> tuple[list[DocumentBatch], float]:
    """Returns the first documents of a unit that have `wanted` planned bytes together, and how many they have."""
    batches: list[DocumentBatch] = []
    consumed = 0.0
    for batch in read_unit(unit, config):
        kept = _beginning(batch, (wanted - consumed) / per_place, unit.format, per_place)
        if kept.texts:
            batches.append(kept)
            consumed += per_place * float(_ends(kept, unit.format, per_place)[-1])
        if consumed >= wanted:
            break
    return batches, consumed


def _beginning(batch: DocumentBatch, extent: float, format: str, per_row: float) -> DocumentBatch:
    """Returns the first documents of a batch that have this extent together, at least one."""
    if not batch.texts:
        return batch
    ends = _ends(batch, format, per_row)
    count = int(np.searchsorted(ends, extent, side="left")) + 1
    return batch if count >= len(ends) else batch.without(np.arange(count, len(ends)))


def _ends(batch: DocumentBatch, format: str, per_row: float) -> np.ndarray:
    """Returns where each document of a batch ends, as an extent since the beginning of the first: floats [documents].

    In bytes of the file, or in rows of the average size `per_row`, unless a text occurs in many rows, which a table
    may store once.
    """
    if format not in _TABLES:
        starts = batch.places - batch.places[0]
        texts = int(batch.bytes[:-1].sum())
        last = float(batch.bytes[-1]) * (
            int(starts[-1]) / texts if texts else 1.0
        )  # the size of its record is unknown
        return np.append(starts[1:], starts[-1] + last)
    if len(set(batch.texts)) < _MOSTLY_DISTINCT * len(batch.texts):
        return batch.places - batch.places[0] + 1.0
    return np.cumsum(batch.bytes + _BYTES_AROUND_TEXT) / per_row


def _expansion(path: str) -> float:
    """Returns how many bytes of content a byte of a compressed file has, at its beginning."""
    with filesystem.open_file(path) as file:
        prefix = io.BytesIO(file.read(_PREFIX))
    stream = DecompressedFile(prefix, codec_of(path), path)
    content = 0
    with contextlib.suppress(DataError):  # the prefix ends within the compressed data
        while piece := stream.read(_PREFIX_BLOCK):
            content += len(piece)
    return max(1, content) / max(1, prefix.tell())
