"""A row's origin in words: its work units, and its documents as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.views.decoding import visible
from beam_pipeline.views.reading import Row
from beam_pipeline.views.tracing import DocumentPart

_COUNTED = {"parquet": "row groups", "arrow": "rows"}  # what a part's range counts, if not bytes
_MOST_UNITS = 8  # named of a row of tails
_MOST_FILES = 5  # named of a unit that holds many


def describe_units(units: Sequence[WorkUnit]) -> list[str]:
    """The units' files with their ranges, a line each; of many units only the first are named."""
    lines = [line for unit in units[:_MOST_UNITS] for line in describe_unit(unit)]
    more = len(units) - _MOST_UNITS
    return lines if more <= 0 else [*lines, f"… and {more:,} work units more"]


def describe_unit(unit: WorkUnit) -> list[str]:
    """A unit's files with their ranges, a line each; of many only the first are named."""
    lines = []
    for part in unit.parts:
        within = f"bytes {part.start:,} to {part.end:,}"
        if unit.format in _COUNTED:
            within = f"{_COUNTED[unit.format]} {part.start:,} to {part.end - 1:,}, counted from 0"
        lines.append(f"{visible(unit.root + part.name, one_line=True)}, {within}")
    more = len(lines) - _MOST_FILES
    if more > 1:
        lines = [*lines[: _MOST_FILES - 1], f"… and {more + 1:,} files more"]
    if unit.repeat or unit.share < 1:
        share = f", {unit.share:.3g} of the documents" if unit.share < 1 else ""
        lines.append(f"repeat {unit.repeat + 1} of the mixture{share}")
    return lines


def stretches_of(
    row: Row, parts: Sequence[DocumentPart] | None, starts: np.ndarray | None
) -> list[tuple[int, int, str]]:
    """A row cut where its documents meet, as well as that is known.

    Args:
      row: the row.
      parts: its documents, where they were found.
      starts: where they begin, where that is known.

    Returns:
      (first token, end, what is known of it) of each stretch.
    """
    if parts is not None:
        return [(part.first, part.end, part.describe()) for part in parts]
    if starts is None:
        return [(0, len(row.ids), "where documents meet is not recorded (--segment_ids does)")]
    ends = [*starts[1:].tolist(), len(row.ids)]
    return [(first, end, "") for first, end in zip(starts.tolist(), ends, strict=True)]
