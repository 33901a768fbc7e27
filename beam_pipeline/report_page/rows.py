"""Selects some of a dataset's rows for its report: their text, the boundaries of documents, and their origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from beam_pipeline.views.decoding import RowDecoder, visible
from beam_pipeline.views.describing import describe_units, stretches_of
from beam_pipeline.views.reading import Split
from beam_pipeline.views.tracing import NotTraced, Tracer

_ROWS_PER_SPLIT = 3

# The most bytes of source to read again for a row's exact documents: about two seconds with the slowest engine.
_MAX_BYTES_TO_TRACE = 2 << 20


@dataclass(frozen=True)
class Piece:
    """The text of one or more tokens that decode together."""

    text: str
    is_special: bool


@dataclass(frozen=True)
class Stretch:
    """A part of a row that came from one document: its tokens from `first` to `end` (exclusive)."""

    first: int
    end: int
    remark: str
    """Describes the document if it is known."""
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class ShownRow:
    """A row with everything that the page shows of it."""

    place: str
    """SPLIT:SHARD:RECORD."""
    tokens: int
    padding: int
    position: int
    """Its number among the `of` rows that came from `source`."""
    of: int
    source: str
    stretches: Sequence[Stretch]
    is_open: bool


def shown_rows(splits: Sequence[Split], decoder: RowDecoder) -> Iterator[ShownRow]:
    """Yields up to three rows of each split. The page shows only the first of them unfolded."""
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
            yield ShownRow(
                place=f"{split.name}:{shard}:{record}",
                tokens=len(row.ids),
                padding=row.padding,
                position=origin.position,
                of=origin.rows,
                source=f"the ends of {source}" if origin.is_of_tails else source,
                stretches=[
                    Stretch(
                        first,
                        end,
                        visible(remark, one_line=True),
                        _pieces(row.ids[first:end], special, decoder),
                    )
                    for first, end, remark in stretches_of(row, parts, tracer.starts(origin, row))
                ],
                is_open=number == 0,
            )


def _chosen(split: Split) -> Iterator[tuple[int, int]]:
    """Yields (shard, record) of rows that are spread over the split, near the beginnings of shards."""
    shards = split.manifest["shards"]
    for number in range(min(_ROWS_PER_SPLIT, split.manifest["num_records"])):
        shard = number * len(shards) // _ROWS_PER_SPLIT
        yield shard, min(number, shards[shard]["records"] - 1)


def _pieces(ids, special: set[int], decoder: RowDecoder) -> list[Piece]:
    ids = ids.tolist()
    return [
        Piece(visible(piece.text), not special.isdisjoint(ids[piece.first : piece.end]))
        for piece in decoder.pieces(ids)
    ]
