"""Describes a row's origin in words: its work units, and its documents if they are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.views.reading import Row
from beam_pipeline.views.row_parts import DocumentPart
from tokenmill_reader.console.escaping import visible

_RANGE_UNITS = {"parquet": "row groups", "arrow": "rows"}  # the unit of a part's range, if it is not bytes
_MAX_UNITS = 8  # a row of tails can have more
_MAX_FILES = 5  # per unit


def describe_units(units: Sequence[WorkUnit]) -> list[str]:
    """Returns a line for each file of the units, with its range. If there are many units, names only the first."""
    lines = [line for unit in units[:_MAX_UNITS] for line in describe_unit(unit)]
    num_omitted = len(units) - _MAX_UNITS
    return lines if num_omitted <= 0 else [*lines, f"… and {num_omitted:,} more work units"]


def describe_unit(unit: WorkUnit) -> list[str]:
    """Returns a line for each file of a unit, with its range. If there are many files, names only the first."""
    lines = []
    for part in unit.parts:
        range_text = f"bytes {part.start:,} to {part.end:,}"
        if unit.format in _RANGE_UNITS:
            range_text = f"{_RANGE_UNITS[unit.format]} {part.start:,} to {part.end - 1:,}, counted from 0"
        lines.append(f"{visible(unit.root + part.name, one_line=True)}, {range_text}")
    num_omitted = len(lines) - _MAX_FILES
    if num_omitted > 1:
        lines = [*lines[: _MAX_FILES - 1], f"… and {num_omitted + 1:,} more files"]
    if unit.repeat or unit.share < 1:
        share = f", {unit.share:.3g} of the documents" if unit.share < 1 else ""
        lines.append(f"repeat {unit.repeat + 1} of the mixture{share}")
    return lines


def stretches_of(
    row: Row, parts: Sequence[DocumentPart] | None, starts: np.ndarray | None
) -> list[tuple[int, int, str]]:
    """Cuts a row at the boundaries of its documents. `parts` and `starts` are None if they are unknown.

    Returns:
        (first token, end, description) of each stretch.
    """
    if parts is not None:
        return [(part.first, part.end, part.describe()) for part in parts]
    if starts is None:
        return [
            (0, len(row.ids), "the boundaries of documents are not recorded (--segment_ids records them)")
        ]
    ends = [*starts[1:].tolist(), len(row.ids)]
    return [(start, end, "") for start, end in zip(starts.tolist(), ends, strict=True)]
