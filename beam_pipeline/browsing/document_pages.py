"""The pages of documents in the order of the source, and of the records that could not become documents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from beam_pipeline.browsing.documents import PackedUnit
from beam_pipeline.browsing.filters import BadRequest, Filter
from beam_pipeline.browsing.opened import OpenDataset, OpenSplit
from beam_pipeline.browsing.pages import (
    PER_PAGE,
    SEARCH_SECONDS,
    NotFound,
    Query,
    Values,
    first_token,
    split_of,
    token_links,
)
from beam_pipeline.browsing.text import excerpt, excerpt_around, shown_pieces
from beam_pipeline.sources.reading import describe_place
from beam_pipeline.support import filesystem
from beam_pipeline.views.code_text import is_code
from beam_pipeline.views.describing import describe_unit

_LINE_BYTES = 1 << 20  # of a bad record, which may be of any size
_CONTENT = 2000  # characters of it that are shown
_TOGETHER = 64  # documents between two looks at the clock


def documents(dataset: OpenDataset, query: Query) -> Values:
    """Returns the values of a list of documents of one work unit. Raises NotTraced as `DocumentAccess.unit`."""
    wanted = Filter.parse(query)
    opened = _packed_split(dataset, wanted.split)
    numbers = opened.units_of(wanted.source, None)
    numbers = range(len(opened.split.units)) if numbers is None else numbers
    if wanted.unit is not None and wanted.unit not in numbers:
        raise NotFound(f"There is no work unit {wanted.unit:,} with such a source.")
    if not numbers:
        return {"wanted": wanted, "opened": opened, "packed": None}
    index = 0 if wanted.unit is None else numbers.index(wanted.unit)
    packed = opened.documents.unit(numbers[index])
    shown, end = _matching(dataset, packed, wanted)
    total = len(packed.content.names)
    after = before = None
    if end < total:
        after = wanted.url("documents", unit=packed.unit.index, first=end)
    elif index + 1 < len(numbers):
        after = wanted.url("documents", unit=numbers[index + 1], first=0)
    if wanted.first and not wanted.needs_scan:
        before = wanted.url("documents", unit=packed.unit.index, first=max(0, wanted.first - PER_PAGE))
    elif not wanted.first and index:
        before = wanted.url("documents", unit=numbers[index - 1], first=0)
    return {
        "wanted": wanted,
        "opened": opened,
        "packed": packed,
        "files": describe_unit(packed.unit),
        "index": index,
        "units": len(numbers),
        "items": shown,
        "end": end,
        "total": total,
        "next": after,
        "previous": before,
    }


def _packed_split(dataset: OpenDataset, name: str) -> OpenSplit:
    opened = split_of(dataset, name)
    if not opened.has_rows:
        raise NotFound(
            "Each record of this dataset is a whole document: they are all in the list of documents."
        )
    return opened


def _matching(dataset: OpenDataset, packed: PackedUnit, wanted: Filter) -> tuple[list[Values], int]:
    """Returns the documents of a unit that match, from `wanted.first` on, and the number of the first one not read."""
    names, content = packed.content.names, packed.content.documents
    is_named = (
        [wanted.source in packed.unit.root + name for name in names] if wanted.source else [True] * len(names)
    )
    find, began, shown = wanted.matcher(), time.monotonic(), []
    for number in range(wanted.first, len(names)):
        if number % _TOGETHER == 0 and number > wanted.first and time.monotonic() - began > SEARCH_SECONDS:
            return shown, number
        tokens = int(content.lengths[number])
        if not is_named[number] or not wanted.allows(tokens):
            continue
        ids = packed.ids(number)
        span = None
        if wanted.text:
            [text] = dataset.decoder.texts([ids.tolist()])
            span = find(text)
            if span is None:
                continue
        excerpted = excerpt_around(text, span) if span else excerpt(ids, dataset.decoder)
        shown.append(
            {
                "number": number,
                "tokens": tokens,
                "name": names[number],
                "place": packed.content.places[number],
                "text": excerpted,
                "is_code": is_code(str(excerpted), names[number]),
            }
        )
        if len(shown) == PER_PAGE:
            return shown, number + 1
    return shown, len(names)


def document(dataset: OpenDataset, query: Query, name: str, unit: str, number: str) -> Values:
    """Returns the values of one document's page. Raises NotTraced as `DocumentAccess.unit`."""
    opened = _packed_split(dataset, name)
    if int(unit) >= len(opened.split.units):
        raise NotFound(f"{name} has the work units 0 to {len(opened.split.units) - 1:,}, not {int(unit):,}.")
    packed, at = opened.documents.unit(int(unit)), int(number)
    count = len(packed.content.names)
    if at >= count:
        raise NotFound(
            f"Work unit {int(unit):,} has {count:,} documents in {name}, so there is no number {at:,}."
        )
    ids = packed.ids(at)
    links = token_links(first_token(query, len(ids)), len(ids))
    content = packed.content
    window = ids[links["first"] : links["end"]].tolist()
    pieces = shown_pieces(window, links["first"], dataset.decoder, opened.special)
    return {
        "opened": opened,
        "unit": packed.unit,
        "number": at,
        "count": count,
        "place": describe_place(packed.unit, content.names[at], content.places[at]),
        "rows": opened.documents.rows_of(packed, at),
        "pieces": pieces,
        "is_code": is_code("".join(piece.plain for piece in pieces), content.names[at]),
        **links,
    }


def bad_records(dataset: OpenDataset, query: Query) -> Values:
    """Returns the values of a list of bad records: those of one work unit, in the file `unit` of their folder."""
    wanted = Filter.parse(query)
    files, index = dataset.bad_record_files, wanted.unit or 0
    if not files:
        raise NotFound("The run has not recorded any bad records (--on_bad_record skip does).")
    if index >= len(files):
        raise BadRequest(f"unit is {index}, but the files of bad records are 0 to {len(files) - 1:,}")
    with filesystem.open_file(files[index]) as file:
        entries = list(islice(_entries(file), wanted.first, wanted.first + PER_PAGE + 1))
    after = before = None
    if len(entries) > PER_PAGE:
        after = wanted.url("bad", first=wanted.first + PER_PAGE)
    elif index + 1 < len(files):
        after = wanted.url("bad", unit=index + 1, first=0)
    if wanted.first:
        before = wanted.url("bad", first=max(0, wanted.first - PER_PAGE))
    elif index:
        before = wanted.url("bad", unit=index - 1)
    return {
        "entries": entries[:PER_PAGE],
        "path": files[index],
        "first": wanted.first,
        "next": after,
        "previous": before,
    }


def _entries(file: BinaryIO) -> Iterator[Values]:
    """Yields the entries of a file of bad records. Of a long one, only the beginning is read."""
    while line := file.readline(_LINE_BYTES):
        is_cut = not line.endswith(b"\n")
        while is_cut and (rest := file.readline(_LINE_BYTES)) and not rest.endswith(b"\n"):
            pass
        try:
            entry = json.loads(line)
            values = {name: str(entry[name]) for name in ("path", "place", "reason", "content")}
        except (ValueError, LookupError, TypeError):
            values = {
                "path": "",
                "place": "",
                "reason": "",
                "content": line.decode(errors="backslashreplace"),
            }
        content = values["content"]
        yield {**values, "is_cut": is_cut or len(content) > _CONTENT, "content": content[:_CONTENT]}
