"""The pages of rows: the overview, the list of rows, and one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from beam_pipeline.browsing.filters import BadRequest, Filter, token_number
from beam_pipeline.browsing.opened import OpenDataset, OpenSplit
from beam_pipeline.browsing.search import Match, SearchResult, search
from beam_pipeline.browsing.selection import Selection, numbers_of_ranks
from beam_pipeline.browsing.text import excerpt, excerpt_around, shown_pieces
from beam_pipeline.views.code_text import is_code
from beam_pipeline.views.command import prepare_command
from beam_pipeline.views.describing import describe_units, stretches_of
from beam_pipeline.views.reading import Origin, Row
from beam_pipeline.views.row_parts import DocumentPart
from beam_pipeline.views.sources import summarize_sources
from beam_pipeline.views.tracing import NotTraced

PER_PAGE = 20
SEARCH_SECONDS = 2.0
TOKENS_PER_PAGE = 2048

Query = Mapping[str, str]
Values = dict[str, Any]
"""The values of a template."""


class NotFound(Exception):
    """There is no such page, row or document."""


def split_of(dataset: OpenDataset, name: str) -> OpenSplit:
    """Returns a split. Raises NotFound if there is none with this name."""
    opened = dataset.split(name)
    if opened is None:
        names = ", ".join(split.name for split in dataset.splits)
        raise NotFound(f"There is no split {name!r}, only {names}.")
    return opened


def overview(dataset: OpenDataset, query: Query) -> Values:
    """Returns the values of the first page."""
    splits = [opened.split for opened in dataset.splits]
    manifest = splits[0].manifest
    total = {name: sum(split.manifest["totals"][name] for split in splits) for name in manifest["totals"]}
    return {
        "manifest": manifest,
        "splits": splits,
        "total": total,
        "sources": summarize_sources(splits),
        "source_url": lambda split, name: Filter(split=split.name, source=name.lstrip("*")).url("rows"),
        "command": prepare_command(splits[0], dataset.folder),
    }


def rows(dataset: OpenDataset, query: Query) -> Values:
    """Returns the values of a list of rows."""
    wanted = Filter.parse(query)
    opened = split_of(dataset, wanted.split)
    selection = opened.selection(wanted.source, wanted.unit)
    if wanted.needs_scan:
        result = search(
            selection=selection,
            access=opened.access,
            decoder=dataset.decoder,
            wanted=wanted,
            most=PER_PAGE,
            seconds=SEARCH_SECONDS,
        )
    else:
        numbers = selection.numbers(wanted.first, PER_PAGE).tolist()
        matches = [Match(*pair) for pair in zip(numbers, opened.access.rows(numbers), strict=True)]
        result = SearchResult(matches, len(matches), wanted.first + len(matches))
    return {
        "wanted": wanted,
        "opened": opened,
        "items": [_item(dataset, opened, match, wanted.source) for match in result.matches],
        "result": result,
        "total": len(selection),
        **_links(wanted, selection, result),
    }


def _links(wanted: Filter, selection: Selection, result: SearchResult) -> Values:
    """Returns the URLs of the lists before and after this one; None if there is none.

    Where a search has to read rows, nothing tells where the list before this one began.
    """
    before = max(0, wanted.first - PER_PAGE)
    return {
        "previous": wanted.url("rows", first=before) if wanted.first and not wanted.needs_scan else None,
        "next": wanted.url("rows", first=result.end) if result.end < len(selection) else None,
        "start": wanted.url("rows", first=0) if wanted.first and wanted.needs_scan else None,
    }


def _item(dataset: OpenDataset, opened: OpenSplit, match: Match, source: str) -> Values:
    """Returns the values of a row in a list."""
    shard, record = opened.access.place(match.number)
    text = excerpt_around(match.text, match.span) if match.span else excerpt(match.row.ids, dataset.decoder)
    line, name = _source_line(opened.split.origin(shard, record), source)
    return {
        "number": match.number,
        "place": f"{opened.name}:{shard}:{record}",
        "tokens": len(match.row.ids),
        "documents": None if match.row.starts is None else len(match.row.starts),
        "source": line,
        "text": text,
        "is_code": is_code(str(text), name),
    }


def _source_line(origin: Origin, source: str) -> tuple[str, str]:
    """Returns a line about the files of a row's units that match `source`, and the name of the first one."""
    names = dict.fromkeys(
        part.name for unit in origin.units for part in unit.parts if source in unit.root + part.name
    )
    first, more = next(iter(names), ""), len(names) - 1
    return f"{first} and {more:,} more" if more > 0 else first, first


def row(dataset: OpenDataset, query: Query, name: str, number: str) -> Values:
    """Returns the values of one row's page."""
    opened = split_of(dataset, name)
    access, split = opened.access, opened.split
    at = int(number)
    if at >= len(access):
        noun = record_noun(opened)
        existing = (
            f"the {noun}s 0 to {len(access) - 1:,}, not {at:,}" if len(access) else f"no {noun}s: it is empty"
        )
        raise NotFound(f"{name} has {existing}.")
    [content] = access.rows([at])
    shard, record = access.place(at)
    origin = split.origin(shard, record)
    reason, parts = None, None
    try:
        parts = opened.documents.parts_of(origin, content)
    except NotTraced as error:
        reason = str(error)
    starts = opened.documents.starts_in(origin, content)
    around = [rank for rank in (origin.rank - 1, origin.rank + 1) if 0 <= rank < len(access)]
    by_rank = dict(zip(around, numbers_of_ranks(split, access, around).tolist(), strict=True))
    first = first_token(query, len(content.ids))
    return {
        "opened": opened,
        "number": at,
        "place": f"{name}:{shard}:{record}",
        "path": split.shard_path(shard),
        "record": record,
        "content": content,
        "origin": origin,
        "units": describe_units(origin.units),
        "reason": reason,
        "before_in_source": by_rank.get(origin.rank - 1),
        "after_in_source": by_rank.get(origin.rank + 1),
        "last": len(access) - 1,
        "stretches": [*_stretches(dataset, opened, content, parts, starts, first)],
        **token_links(first, len(content.ids)),
    }


def record_noun(opened: OpenSplit) -> str:
    """Returns the word for a record of the split."""
    return "row" if opened.has_rows else "document"


def first_token(query: Query, tokens: int) -> int:
    """Returns the first token to show. Raises BadRequest if there is none."""
    first = token_number(query)
    if first and first >= tokens:
        raise BadRequest(f"from is {first}, but there are only {tokens:,} tokens")
    return first


def token_links(first: int, tokens: int) -> Values:
    """Returns the window of tokens that is shown, and the first tokens of the windows around it; None if none."""
    end = min(tokens, first + TOKENS_PER_PAGE)
    return {
        "first": first,
        "end": end,
        "tokens": tokens,
        "previous_tokens": max(0, first - TOKENS_PER_PAGE) if first else None,
        "next_tokens": end if end < tokens else None,
    }


def _stretches(
    dataset: OpenDataset,
    opened: OpenSplit,
    content: Row,
    parts: Sequence[DocumentPart] | None,
    starts: Any,
    first: int,
) -> Iterator[Values]:
    """Yields the parts of a row that came from one document each, within the window of tokens from `first` on."""
    bounds = [(begin, end) for begin, end, _ in stretches_of(content, None, starts)]
    if parts is not None:
        bounds = [(part.first, part.end) for part in parts]
    for index, (begin, end) in enumerate(bounds):
        shown_begin, shown_end = max(begin, first), min(end, first + TOKENS_PER_PAGE)
        if shown_begin >= shown_end:
            continue
        ids = content.ids[shown_begin:shown_end].tolist()
        part = None if parts is None else parts[index]
        targets = None if content.targets is None else content.targets[shown_begin:shown_end]
        pieces = shown_pieces(ids, shown_begin, dataset.decoder, opened.special, targets)
        yield {
            "first": begin,
            "end": end,
            "number": index + 1,
            "part": part,
            "pieces": pieces,
            "is_code": is_code("".join(piece.plain for piece in pieces), part.name if part else ""),
        }
