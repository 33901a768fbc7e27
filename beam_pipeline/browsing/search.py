"""Searches rows one batch at a time, until enough match or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from beam_pipeline.browsing.filters import Filter, Span
from beam_pipeline.browsing.selection import Selection
from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.reading import Row
from beam_pipeline.views.row_access import RowAccess

_TOKENS_TOGETHER = 1 << 16
_MOST_ROWS_TOGETHER = 512


@dataclass(frozen=True)
class Match:
    """A row that matches."""

    number: int
    row: Row
    text: str | None = None
    """Its text, if it was searched."""
    span: Span | None = None
    """The first match in the text."""


@dataclass(frozen=True)
class SearchResult:
    """What a search has read, and the rows that match."""

    matches: list[Match]
    scanned: int
    """The number of rows that were read."""
    end: int
    """The index of the first row that was not."""


def search(
    *,
    selection: Selection,
    access: RowAccess,
    decoder: TextDecoder,
    wanted: Filter,
    most: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult:
    """Reads rows from `wanted.first` on.

    Args:
        selection: The rows to search.
        access: Reads them.
        decoder: Decodes them.
        wanted: The filter.
        most: The search ends after so many matches,
        seconds: or after about this time, but not before a batch is read.
        clock: Returns the time in seconds.

    Raises:
        DataError: If a shard is missing or damaged.
    """
    find, began = wanted.matcher(), clock()
    matches: list[Match] = []
    index, together = wanted.first, 16
    while index < len(selection) and (index == wanted.first or clock() - began < seconds):
        numbers = selection.numbers(index, together)
        rows = access.rows(numbers)
        fitting = [position for position, row in enumerate(rows) if wanted.allows(len(row.ids))]
        texts = decoder.texts([rows[position].ids.tolist() for position in fitting]) if wanted.text else None
        for order, position in enumerate(fitting):
            text = texts[order] if texts is not None else None
            span = find(text) if text is not None else None
            if text is not None and span is None:
                continue
            matches.append(Match(int(numbers[position]), rows[position], text, span))
            if len(matches) == most:
                end = index + position + 1
                return SearchResult(matches, end - wanted.first, end)
        index += len(rows)
        # Documents may be of any length, so the next batch depends on this one.
        tokens = max(1, sum(len(row.ids) for row in rows) // len(rows))
        together = max(1, min(_MOST_ROWS_TOGETHER, 2 * together, _TOKENS_TOGETHER // tokens))
    return SearchResult(matches, max(0, index - wanted.first), index)
