"""Selects some of a dataset's rows for its report: their text, the boundaries of documents, and their origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.views.code_text import is_code
from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.describing import describe_units, stretches_of
from beam_pipeline.views.reading import FinishedSplit, Row
from beam_pipeline.views.row_access import RowAccess
from beam_pipeline.views.tracing import NotTraced, Tracer, must_deduplicate
from tokenmill_reader.console.escaping import visible

# The most bytes of source to read again for a row's exact documents: about two seconds, by an engine, and by HF's or a
# chat template.
_MAX_BYTES_TO_TRACE = {True: 32 << 20, False: 2 << 20}

_FIRST_ROWS = 256  # among which the shown ones are


def shown_rows(splits: Sequence[FinishedSplit], decoder: TextDecoder) -> Iterator[dict[str, Any]]:
    """Yields the page's values for up to three rows of each split. Only the first row of a split is unfolded."""
    for split in splits:
        tracer = Tracer(split) if split.manifest["num_records"] else None
        special = set(split.manifest["tokenizer"]["all_special_ids"])
        is_fast = not split.has_targets and all(
            engine["name"] != "hf" for engine in split.manifest["engines"]
        )
        access = RowAccess(split)
        chosen = _chosen(split) if tracer else []
        rows = access.rows([int(access.starts[shard]) + record for shard, record in chosen])
        for number, ((shard, record), row) in enumerate(zip(chosen, rows, strict=True)):
            origin = split.origin(shard, record)
            try:
                parts = tracer.trace(origin, row, max_bytes=_MAX_BYTES_TO_TRACE[is_fast])
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
                "is_code": is_code(decoder.texts([row.ids.tolist()])[0], origin.units[0].parts[0].name),
                "is_open": number == 0,
            }


def _chosen(split: FinishedSplit) -> list[tuple[int, int]]:
    """Returns (shard, record) of up to three rows, whose documents are the fastest to find.

    Those of the smallest work unit; or, if few documents are enough to know them, the first rows of the first unit.
    """
    rows = split.row_table.rows[:, 0]
    with_rows = np.flatnonzero(rows[:-1])
    is_whole = split.manifest["config"]["packing"] == "best_fit"
    cost = np.array([unit.bytes if is_whole else unit.index for unit in split.units], np.int64)
    if must_deduplicate(split):
        cost = np.cumsum(cost)
    unit = int(with_rows[np.argmin(cost[with_rows])]) if len(with_rows) else len(rows) - 1  # else the tails
    count = int(rows[unit]) if is_whole else min(int(rows[unit]), _FIRST_ROWS)
    ranks = split.row_table.first_rank(unit, 0) + np.unique([0, count // 2, count - 1])
    shards, records = split.layout.place(ranks)
    return list(zip(shards.tolist(), records.tolist(), strict=True))


def _stretch(
    row: Row, first: int, end: int, remark: str, special: set[int], decoder: TextDecoder
) -> dict[str, Any]:
    """Returns a part of a row that came from one document; `remark` describes the document if it is known."""
    ids = row.ids[first:end].tolist()
    targets = None if row.targets is None else row.targets[first:end]
    pieces = [
        {
            "text": visible(piece.text),
            "is_special": not special.isdisjoint(ids[piece.first : piece.end]),
            "is_target": targets is not None and bool(targets[piece.first]),
        }
        for piece in decoder.pieces(ids)
    ]
    return {"first": first, "end": end, "remark": remark, "pieces": pieces}
