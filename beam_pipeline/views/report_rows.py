"""Some of a dataset's rows for its report: their text, where documents meet in them, and where they came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from beam_pipeline.inspection import describe_units, stretches_of
from beam_pipeline.views.decoding import RowDecoder, visible
from beam_pipeline.views.reading import Origin, Row, Split
from beam_pipeline.views.tracing import NotTraced, Tracer

_ROWS_OF_A_SPLIT = 3

# Up to this size the source is read again to name the very documents: about two seconds, with the slowest engine.
_MOST_BYTES_TO_TRACE = 2 << 20


def row_sections(splits: Sequence[Split], decoder: RowDecoder) -> Iterator[str]:
    """Some rows of each split as HTML; all that comes from the data is escaped."""
    yield "<h2>Some rows</h2>"
    yield (
        "<p>As the trainer will see them. Where a row's documents are known, each has its place in the source; "
        "<code>inspect OUT --record</code> shows any other record.</p>"
    )
    yield '<input type="checkbox" class="show" id="tokens"><label class="switch" for="tokens">show the tokens</label>'
    for split in splits:
        tracer = Tracer(split) if split.manifest["num_records"] else None
        for number, (shard, record) in enumerate(_chosen(split)):
            row, origin = split.row(shard, record), split.origin(shard, record)
            try:
                parts = tracer.trace(origin, row, most_bytes=_MOST_BYTES_TO_TRACE)
            except NotTraced:
                parts = None
            stretches = stretches_of(row, parts, tracer.starts(origin, row))
            yield from _row(split, shard, record, row, origin, stretches, decoder, is_open=number == 0)


def _chosen(split: Split) -> Iterator[tuple[int, int]]:
    """(shard, record) of rows from all over the split, near the shards' beginnings."""
    shards = split.manifest["shards"]
    for number in range(min(_ROWS_OF_A_SPLIT, split.manifest["num_records"])):
        shard = number * len(shards) // _ROWS_OF_A_SPLIT
        yield shard, min(number, shards[shard]["records"] - 1)


def _row(
    split: Split,
    shard: int,
    record: int,
    row: Row,
    origin: Origin,
    stretches: Sequence[tuple[int, int, str]],
    decoder: RowDecoder,
    is_open: bool,
) -> Iterator[str]:
    source = "; ".join(describe_units(origin.units))
    source = f"the ends of {source}" if origin.is_of_tails else source
    padding = f", {row.padding:,} of padding" if row.padding else ""
    yield (
        f"<details{' open' * is_open}><summary><code>{escape(split.name)}:{shard}:{record}</code> "
        f"<span>{len(row.ids):,} tokens{padding}; row {origin.position:,} of the {origin.rows:,} from "
        f'{escape(source)}</span></summary><div class="row">'
    )
    special = set(split.manifest["tokenizer"]["all_special_ids"])
    for first, end, remark in stretches:
        remark = f"; {escape(visible(remark, one_line=True))}" if remark else ""
        text = _text(row.ids[first:end].tolist(), special, decoder)
        yield (
            f'<div class="document"><small>tokens {first:,} to {end - 1:,}{remark}</small>'
            f'<div class="text" dir="auto">{text}</div></div>'
        )
    yield "</div></details>"


def _text(ids: list[int], special: set[int], decoder: RowDecoder) -> str:
    spans = []
    for piece in decoder.pieces(ids):
        text = escape(visible(piece.text))
        tag = "b" if special.intersection(ids[piece.first : piece.end]) else "i"
        spans.append(f"<{tag}>{text}</{tag}>")
    return "".join(spans)
