"""A small, even sample of an input, for estimates: the documents in windows at evenly spaced places.

A window is a range of the input. A document that is partly in it counts by the share that is in it. So a window has, on
average, the same tokens and documents per byte as the input, however different its documents are.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import parquet
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.document_kinds import document_kind
from beam_pipeline.sources.lines import whole_lines
from beam_pipeline.sources.plan import InputPlan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, Part, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.hashing import key64

_MIN_WINDOWS = 256
_MAX_WINDOW = 256 << 10
_MIN_READ_WINDOWS = 16  # even if fewer windows of long documents would have enough bytes
_BACKWARD_STEP = 64 << 10  # first step of the backward search for the beginning of a document, in bytes
_PREFIX_BYTES = 1 << 20  # bytes of a compressed file that are read to measure its compression
_PREFIX_BLOCK = 16 << 10
_TABLES = ("parquet", "arrow")
_BYTES_AROUND_TEXT = 4  # the length or offset of each text in a table
_MOSTLY_DISTINCT = 0.9


@dataclass
class SampleWindow:
    """A range of the input."""

    unit: WorkUnit
    pieces: list[tuple[DocumentBatch, float]]
    """The documents, in order, and the share of each that is in the window."""
    planned_bytes: float
    """The size in planned bytes."""
    seconds: float
    """The time that it took to read the documents."""
    weight: int = 1
    """The number of places that the window represents. It is final when all windows have been read, since a later place
    may be in the same document.
    """

    @property
    def text_bytes(self) -> int:
        """The size of the documents, including the parts outside of the window."""
        return sum(int(batch.texts.sizes.sum()) for batch, _ in self.pieces)


def windows(
    input_plan: InputPlan,
    config: InputConfig,
    *,
    sample_bytes: int,
    seed: int,
    places: int = _MIN_WINDOWS,
    columns: Sequence[str] = (),
) -> Iterator[SampleWindow]:
    """Yields the documents at evenly spaced places of the input, in random order, about `sample_bytes` together.

    They have these `columns` of their records.

    The seed determines the places, of which there are at least `places`, and their order. A window of a compressed file
    or a row group is always at its beginning. If documents are longer than windows, not all places are visited. If the
    input has no more than `sample_bytes`, its units are the windows.

    Raises:
        DataError: If a file can no longer be read, or is broken.
    """
    if input_plan.bytes <= sample_bytes:
        for unit in input_plan.units:
            start_time = time.perf_counter()
            pieces = [(batch, 1.0) for batch in read_unit(unit, config, columns=columns)]
            yield SampleWindow(unit, pieces, max(1, unit.bytes), time.perf_counter() - start_time)
        return
    num_places = max(places, sample_bytes // _MAX_WINDOW)
    ends = np.cumsum([unit.bytes for unit in input_plan.units])
    offsets = (np.arange(num_places) + key64("windows", seed) / 2**64) * input_plan.bytes / num_places
    starts: Counter[_WindowStart] = Counter()  # places with the same start share a larger window
    for offset, index in zip(offsets, np.searchsorted(ends, offsets, side="right"), strict=True):
        unit = input_plan.units[index]
        starts[_locate(unit, offset - (ends[index] - unit.bytes), config)] += 1
    sizes = {file.path: file.size for file in input_plan.files}
    order = np.random.default_rng(key64("order of windows", seed)).permutation(len(starts))
    distinct_starts = list(starts.items())
    consumed = 0.0
    long_documents: dict[
        tuple[str, str], list[tuple[int, float, SampleWindow]]
    ] = {}  # documents longer than windows, by file
    for count, (start, weight) in enumerate(distinct_starts[index] for index in order):
        if count >= _MIN_READ_WINDOWS and consumed > 2 * sample_bytes:
            return
        path = start.unit.root + start.unit.parts[start.part].name
        containing = [
            window
            for first_place, last_place, window in long_documents.get(path, ())
            if first_place <= start.place <= last_place
        ]
        if containing:
            containing[0].weight += weight
            continue
        window, covered = _read_window(start, sample_bytes / num_places * weight, config, sizes, columns)
        window.weight = weight
        consumed += window.text_bytes
        if covered:
            long_documents.setdefault(path, []).append((*covered, window))
        yield window


@dataclass(frozen=True)
class _WindowStart:
    """A place of the input at which a window begins."""

    unit: WorkUnit
    part: int
    """Index of the part that contains the place."""
    place: int
    """The place in the part's file: a byte, row or row group."""


def _locate(unit: WorkUnit, offset: float, config: InputConfig) -> _WindowStart:
    """Returns the nearest start at or before an offset in planned bytes of the unit."""
    extents = np.array([part.end - part.start for part in unit.parts])
    ends = np.cumsum(extents)
    place_in_unit = offset / unit.bytes * int(ends[-1])
    part_index = int(np.searchsorted(ends, place_in_unit, side="right"))
    skipped = (
        int(place_in_unit - (ends[part_index] - extents[part_index]))
        if _can_skip(unit, part_index, config)
        else 0
    )
    return _WindowStart(unit, part_index, unit.parts[part_index].start + skipped)


def is_at_beginning(unit: WorkUnit) -> bool:
    """Returns whether windows of a unit can only be beginnings: of compressed files, or of row groups."""
    return unit.format == "parquet" or any(codec_of(unit.root + part.name) for part in unit.parts)


def _can_skip(unit: WorkUnit, part_index: int, config: InputConfig) -> bool:
    """Returns whether a part can be read from another place than its beginning."""
    name = unit.parts[part_index].name
    whole_file = unit.format == "text" and document_kind(name, config) == "file"
    return not whole_file and not codec_of(unit.root + name)


def _read_window(
    start: _WindowStart,
    planned_bytes: float,
    config: InputConfig,
    sizes: Mapping[str, int],
    columns: Sequence[str],
) -> tuple[SampleWindow, tuple[int, float] | None]:
    """Reads a window.

    Args:
        start: The beginning.
        planned_bytes: The size.
        config: The input's options.
        sizes: The size of each file, by path.
        columns: Other keys or columns to read.

    Returns:
        The window. If it is within a single document: the first and the last byte at which such a window begins.
    """
    start_time = time.perf_counter()
    unit, part_index = start.unit, start.part
    part = replace(unit.parts[part_index], start=start.place)
    path = unit.root + part.name
    # Planned bytes per byte of content, or per row.
    bytes_per_place = unit.bytes / sum(sibling.end - sibling.start for sibling in unit.parts)
    if unit.format == "parquet":
        bytes_per_place = parquet.bytes_per_row(path, sizes[path], config, part.start)
    elif codec_of(path):
        bytes_per_place /= _expansion(path)
    elif _can_skip(unit, part_index, config):
        # Blocks that are read are much larger than a window, so the part ends early.
        part = replace(part, end=min(part.end, start.place + math.ceil(planned_bytes / bytes_per_place)))
        if unit.format not in _TABLES:
            part = replace(part, start=_document_start(unit, part, config))
    offset_in_part = (start.place - part.start) * bytes_per_place
    parts = (part, *unit.parts[part_index + 1 :])
    pieces, covered = _take_pieces(
        replace(unit, parts=parts), offset_in_part, planned_bytes, bytes_per_place, config, columns
    )
    if not pieces:  # only blank records are here
        return SampleWindow(unit, [], planned_bytes, time.perf_counter() - start_time), None
    window = SampleWindow(unit, pieces, covered, time.perf_counter() - start_time)
    [batch, share], *other_pieces = pieces
    if (
        other_pieces
        or len(batch.texts) > 1
        or share == 1
        or unit.format in _TABLES
        or covered < planned_bytes
    ):
        return window, None
    return window, (part.start, part.start + (covered / share - planned_bytes) / bytes_per_place)


def _document_start(unit: WorkUnit, part: Part, config: InputConfig) -> int:
    """Returns the byte at which the document at the part's start begins; the part's start if only blanks precede it."""
    distance = _BACKWARD_STEP
    while True:
        start = max(0, part.start - distance)
        preceding = replace(unit, parts=(replace(part, start=start, end=part.start + 1),))
        places = [int(batch.places[-1]) for batch in read_unit(preceding, config) if batch.texts]
        if places or not start:
            return places[-1] if places else part.start
        distance *= 8


def _take_pieces(
    unit: WorkUnit,
    window_start: float,
    planned_bytes: float,
    bytes_per_place: float,
    config: InputConfig,
    columns: Sequence[str],
) -> tuple[list[tuple[DocumentBatch, float]], float]:
    """Returns a window's pieces, and its size.

    Args:
        unit: The documents. The first one begins at or before the window.
        window_start: The start of the window, in planned bytes from the first document.
        planned_bytes: The size of the window, if the unit does not end before.
        bytes_per_place: Planned bytes per byte of content, or per row.
        config: The input's options.
        columns: Other keys or columns to read.
    """
    pieces: list[tuple[DocumentBatch, float]] = []
    position, end = 0.0, window_start + planned_bytes
    for batch in read_unit(unit, config, columns=columns):
        if not batch.texts:
            continue
        ends = position + bytes_per_place * _document_ends(batch, unit, bytes_per_place)
        begins = np.append(position, ends[:-1])
        inside = np.flatnonzero((ends > window_start) & (begins < end))
        shares = ((np.minimum(ends, end) - np.maximum(begins, window_start)) / (ends - begins))[inside]
        for indices in np.split(inside, np.flatnonzero(np.diff(shares)) + 1):
            if len(indices):
                outside = np.setdiff1d(np.arange(len(ends)), indices)
                pieces.append((batch.without(outside), float(shares[indices[0] - inside[0]])))
        position = float(ends[-1])
        if position >= end:
            break
    return pieces, min(position, end) - window_start


def _document_ends(batch: DocumentBatch, unit: WorkUnit, per_row: float) -> np.ndarray:
    """Returns the end of each document of a batch, counted from the beginning of the first: floats [documents].

    The unit is a byte of the file, or a row of the average size `per_row`. It is simply a row if many texts are
    repeated, since a table may store such a text once.
    """
    starts = batch.places - batch.places[0]
    if unit.format in _TABLES:
        if len(set(batch.texts)) < _MOSTLY_DISTINCT * len(batch.texts):
            return starts + 1.0
        return np.cumsum(batch.texts.sizes + _BYTES_AROUND_TEXT) / per_row
    # The end of the last document is unknown.
    size, path = float(batch.texts.sizes[-1]), unit.root + batch.name
    if len(starts) > 1:
        size *= int(starts[-1]) / int(batch.texts.sizes[:-1].sum())
    elif unit.format == "jsonl" and not codec_of(path):
        place = int(batch.places[0])
        with filesystem.open_file(path) as file:
            size = sum(len(block) for _, block in whole_lines(file, place, place + 1))
    return np.append(starts[1:], starts[-1] + size).astype(float)


def _expansion(path: str) -> float:
    """Returns the bytes of content per byte of a compressed file, at its beginning."""
    with filesystem.open_file(path) as file:
        prefix = io.BytesIO(file.read(_PREFIX_BYTES))
    stream = DecompressedFile(prefix, codec_of(path), path)
    content = 0
    with contextlib.suppress(DataError):  # the prefix ends within the compressed data
        while piece := stream.read(_PREFIX_BLOCK):
            content += len(piece)
    return max(1, content) / max(1, prefix.tell())
