"""A small, even sample of an input, for estimates: what is in windows at evenly spaced places.

A window is a range of the input. Of a document that is partly in it, that share counts. So a window has, on average,
what the input has per byte, however different its documents are.
"""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources import parquet
from beam_pipeline.sources.compression import DecompressedFile, codec_of
from beam_pipeline.sources.lines import whole_lines
from beam_pipeline.sources.plan import Plan
from beam_pipeline.sources.reading import read_unit
from beam_pipeline.sources.units import DocumentBatch, Part, WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.hashing import key64

_MIN_WINDOWS = 256
_MAX_WINDOW = 256 << 10
_LEAST_WINDOWS = 16  # even if documents are so long that fewer would have the bytes
_BACK = 64 << 10  # first step of the search for where a document begins, in bytes
_PREFIX = 1 << 20  # of a compressed file, to find out how well it is compressed
_PREFIX_BLOCK = 16 << 10
_TABLES = ("parquet", "arrow")
_BYTES_AROUND_TEXT = 4  # the length or offset of each text in a table
_MOSTLY_DISTINCT = 0.9


@dataclass
class Window:
    """A range of the input."""

    unit: WorkUnit
    pieces: list[tuple[DocumentBatch, float]]
    """Its documents, in order, and the share of each that is in the window."""
    planned: float
    """Its size in bytes of the plan."""
    seconds: float
    """How long it took to read the documents."""
    weight: int = 1
    """The number of places that the window stands for. It is final when all windows have been read, since a later place
    may be in the same document.
    """

    @property
    def text_bytes(self) -> int:
        """The size of its documents, with what is outside the window."""
        return sum(int(batch.bytes.sum()) for batch, _ in self.pieces)


def windows(planned: Plan, config: InputConfig, *, sample_bytes: int, seed: int) -> Iterator[Window]:
    """Yields the documents at evenly spaced places of the input, in random order, about `sample_bytes` together.

    The seed determines the places and their order. Of a compressed file or a row group, a window is always the
    beginning. If documents are longer than windows, not all places are visited. If the input has no more than
    `sample_bytes`, its units are the windows.

    Raises:
        DataError: If a file can no longer be read, or is broken.
    """
    if planned.bytes <= sample_bytes:
        for unit in planned.units:
            began = time.perf_counter()
            pieces = [(batch, 1.0) for batch in read_unit(unit, config)]
            yield Window(unit, pieces, max(1, unit.bytes), time.perf_counter() - began)
        return
    number = max(_MIN_WINDOWS, sample_bytes // _MAX_WINDOW)
    ends = np.cumsum([unit.bytes for unit in planned.units])
    places = (np.arange(number) + key64("windows", seed) / 2**64) * planned.bytes / number
    starts: Counter[_Start] = Counter()  # places with the same start share a larger window
    for place, index in zip(places, np.searchsorted(ends, places, side="right"), strict=True):
        unit = planned.units[index]
        starts[_locate(unit, place - (ends[index] - unit.bytes), config)] += 1
    sizes = {file.path: file.size for file in planned.files}
    order = np.random.default_rng(key64("order of windows", seed)).permutation(len(starts))
    found = list(starts.items())
    consumed = 0.0
    long: dict[
        tuple[str, str], list[tuple[int, float, Window]]
    ] = {}  # documents longer than windows, by file
    for count, (start, weight) in enumerate(found[index] for index in order):
        if count >= _LEAST_WINDOWS and consumed > 2 * sample_bytes:
            return
        path = start.unit.root + start.unit.parts[start.part].name
        known = [window for begin, last, window in long.get(path, ()) if begin <= start.place <= last]
        if known:
            known[0].weight += weight
            continue
        window, places = _read(start, sample_bytes / number * weight, config, sizes)
        window.weight = weight
        consumed += window.text_bytes
        if places:
            long.setdefault(path, []).append((*places, window))
        yield window


@dataclass(frozen=True)
class _Start:
    """A place of the input at which a window begins."""

    unit: WorkUnit
    part: int
    """Index of the part that contains the place."""
    place: int
    """The place in the part's file: a byte, row or row group."""


def _locate(unit: WorkUnit, offset: float, config: InputConfig) -> _Start:
    """Returns the nearest start at or before an offset in planned bytes of the unit."""
    extents = np.array([part.end - part.start for part in unit.parts])
    ends = np.cumsum(extents)
    within = offset / unit.bytes * int(ends[-1])
    number = int(np.searchsorted(ends, within, side="right"))
    skipped = int(within - (ends[number] - extents[number])) if _can_skip(unit, number, config) else 0
    return _Start(unit, number, unit.parts[number].start + skipped)


def is_at_beginning(unit: WorkUnit) -> bool:
    """Returns whether windows of a unit can only be beginnings: of compressed files, or of row groups."""
    return unit.format == "parquet" or any(codec_of(unit.root + part.name) for part in unit.parts)


def _can_skip(unit: WorkUnit, number: int, config: InputConfig) -> bool:
    """Returns whether a part can be read from another place than its beginning."""
    whole_file = unit.format == "text" and config.document == "file"
    return not whole_file and not codec_of(unit.root + unit.parts[number].name)


def _read(
    start: _Start, wanted: float, config: InputConfig, sizes: Mapping[str, int]
) -> tuple[Window, tuple[int, float] | None]:
    """Reads a window.

    Args:
        start: Where it begins.
        wanted: Its size in planned bytes.
        config: How to read it.
        sizes: The size of each file, by path.

    Returns:
        The window. If it is within a single document: the first and the last byte at which such a window begins.
    """
    began = time.perf_counter()
    unit, number = start.unit, start.part
    part = replace(unit.parts[number], start=start.place)
    path = unit.root + part.name
    # Planned bytes per byte of content, or per row.
    per_place = unit.bytes / sum(each.end - each.start for each in unit.parts)
    if unit.format == "parquet":
        per_place = parquet.bytes_per_row(path, sizes[path], config.text_key, part.start)
    elif codec_of(path):
        per_place /= _expansion(path)
    elif _can_skip(unit, number, config):
        # What is read at a time is much larger than a window, so end it early.
        part = replace(part, end=min(part.end, start.place + math.ceil(wanted / per_place)))
        if unit.format not in _TABLES:
            part = replace(part, start=_begin_of_document(unit, part, config))
    before = (start.place - part.start) * per_place
    parts = (part, *unit.parts[number + 1 :])
    pieces, covered = _take(replace(unit, parts=parts), before, wanted, per_place, config)
    if not pieces:  # only blank records are here
        return Window(unit, [], wanted, time.perf_counter() - began), None
    window = Window(unit, pieces, covered, time.perf_counter() - began)
    [batch, share], *others = pieces
    if others or len(batch.texts) > 1 or share == 1 or unit.format in _TABLES or covered < wanted:
        return window, None
    return window, (part.start, part.start + (covered / share - wanted) / per_place)


def _begin_of_document(unit: WorkUnit, part: Part, config: InputConfig) -> int:
    """Returns the byte at which the document at the part's start begins; the part's start if only blanks precede it."""
    back = _BACK
    while True:
        first = max(0, part.start - back)
        before = replace(unit, parts=(replace(part, start=first, end=part.start + 1),))
        places = [int(batch.places[-1]) for batch in read_unit(before, config) if batch.texts]
        if places or not first:
            return places[-1] if places else part.start
        back *= 8


def _take(
    unit: WorkUnit, before: float, wanted: float, per_place: float, config: InputConfig
) -> tuple[list[tuple[DocumentBatch, float]], float]:
    """Returns a window's pieces, and its size.

    Args:
        unit: Where the documents are. The first of them begins at or before the window.
        before: Where the window begins, in planned bytes from there.
        wanted: Its size in planned bytes, if the unit does not end before.
        per_place: Planned bytes per byte of content, or per row.
        config: How to read the documents.
    """
    pieces: list[tuple[DocumentBatch, float]] = []
    position, end = 0.0, before + wanted
    for batch in read_unit(unit, config):
        if not batch.texts:
            continue
        ends = position + per_place * _ends(batch, unit, per_place)
        begins = np.append(position, ends[:-1])
        inside = np.flatnonzero((ends > before) & (begins < end))
        shares = ((np.minimum(ends, end) - np.maximum(begins, before)) / (ends - begins))[inside]
        for chosen in np.split(inside, np.flatnonzero(np.diff(shares)) + 1):
            if len(chosen):
                others = np.setdiff1d(np.arange(len(ends)), chosen)
                pieces.append((batch.without(others), float(shares[chosen[0] - inside[0]])))
        position = float(ends[-1])
        if position >= end:
            break
    return pieces, min(position, end) - before


def _ends(batch: DocumentBatch, unit: WorkUnit, per_row: float) -> np.ndarray:
    """Returns where each document of a batch ends, as an extent since the beginning of the first: floats [documents].

    In bytes of the file, or in rows of the average size `per_row`, unless a text occurs in many rows, which a table
    may store once.
    """
    starts = batch.places - batch.places[0]
    if unit.format in _TABLES:
        if len(set(batch.texts)) < _MOSTLY_DISTINCT * len(batch.texts):
            return starts + 1.0
        return np.cumsum(batch.bytes + _BYTES_AROUND_TEXT) / per_row
    # Where the last one ends is unknown.
    size, path = float(batch.bytes[-1]), unit.root + batch.name
    if len(starts) > 1:
        size *= int(starts[-1]) / int(batch.bytes[:-1].sum())
    elif unit.format == "jsonl" and not codec_of(path):
        begin = int(batch.places[0])
        with filesystem.open_file(path) as file:
            size = sum(len(block) for _, block in whole_lines(file, begin, begin + 1))
    return np.append(starts[1:], starts[-1] + size).astype(float)


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
