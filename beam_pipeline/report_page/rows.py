"""Selects some of a dataset's rows for its report: their text, the boundaries of documents, and their origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.describing import describe_units, stretches_of
from beam_pipeline.views.reading import FinishedSplit, Row
from beam_pipeline.views.tracing import NotTraced, Tracer
from tokenmill_reader.console.escaping import visible

_ROWS_PER_SPLIT = 3

# The most bytes of source to read again for a row's exact documents: about two seconds with the slowest engine.
_MAX_BYTES_TO_TRACE = 2 << 20


def shown_rows(splits: Sequence[FinishedSplit], decoder: TextDecoder) -> Iterator[dict[str, Any]]:
    """Yields the page's values for up to three rows of each split. Only the first row of a split is unfolded."""
    for split in splits:
        tracer = Tracer(split) if split.manifest["num_records"] else None
        special = set(split.manifest["tokenizer"]["all_special_ids"])
        for number, (shard, record) in enumerate(_chosen(split)):
            row, origin = split.row(shard, record), split.origin(shard, record)
            try:
                parts = tracer.trace(origin, row, max_bytes=_MAX_BYTES_TO_TRACE)
            except NotTraced:
                parts = None
            source = "; ".join(describe_units(origin.units))
            stretches = stretches_of(row, parts, tracer.starts(origin, row))
            yield {
                "place": f"{split.name}:{shard}:{record}",
                "tokens": len(row.ids),
                "padding": row.padding,
                "position": origin.position,
                "of": origin.rows,
                "source": f"the ends of {source}" if origin.is_of_tails else source,
                "stretches": [_stretch(row, *stretch, special, decoder) for stretch in stretches],
                "is_open": number == 0,
            }


def _chosen(split: FinishedSplit) -> Iterator[tuple[int, int]]:
    """Yields (shard, record) of rows that are spread over the split, near the beginnings of shards."""
    shards = split.manifest["shards"]
    for number in range(min(_ROWS_PER_SPLIT, split.manifest["num_records"])):
        shard = number * len(shards) // _ROWS_PER_SPLIT
        yield shard, min(number, shards[shard]["records"] - 1)


def _stretch(
    row: Row, first: int, end: int, remark: str, special: set[int], decoder: TextDecoder
) -> dict[str, Any]:
    """Returns a part of a row that came from one document; `remark` describes the document if it is known."""
    ids = row.ids[first:end].tolist()
    pieces = [
        {"text": visible(piece.text), "is_special": not special.isdisjoint(ids[piece.first : piece.end])}
        for piece in decoder.pieces(ids)
    ]
    return {"first": first, "end": end, "remark": visible(remark, one_line=True), "pieces": pieces}
