"""What `inspect --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from beam_pipeline.verbs.results import SplitSummary
from beam_pipeline.views.reading import FinishedSplit, Origin, Row
from tokenmill_reader.format.manifest import output_format_of


@dataclass(frozen=True)
class Record:
    """A record with its origin."""

    split: FinishedSplit
    shard: int
    number: int
    row: Row
    origin: Origin
    stretches: Sequence[tuple[int, int, str]]
    """(first token, end, description) of each document, as `stretches_of` returns them."""
    untraced_reason: str | None
    """Why its documents are unknown, if tracing them failed."""


def summary_document(splits: Sequence[FinishedSplit]) -> dict[str, Any]:
    """Returns the summary of a dataset as JSON values."""
    first = splits[0].manifest
    return {
        "inputs": {name: first["inputs"][name] for name in ("files", "input_bytes")},
        "tokenizer": {"path": splits[0].tokenizer_folder, "vocab_size": first["tokenizer"]["vocab_size"]},
        "max_length": first["max_length"],
        "features": list(first["features"]),
        "output_format": output_format_of(first),
        "excluded": first["excluded"],
        "splits": {split.name: asdict(SplitSummary.read(split.manifest)) for split in splits},
    }


def record_document(record: Record, *, tokens: bool) -> dict[str, Any]:
    """Returns a record as JSON values, with every token if `tokens`."""
    row, origin = record.row, record.origin
    return {
        "shard": record.split.shard_path(record.shard),
        "record": record.number,
        "rank": origin.rank,
        "row_of_unit": origin.position,
        "is_of_tails": origin.is_of_tails,
        "units": [
            {
                "unit": unit.index,
                "format": unit.format,
                "parts": [
                    {"path": unit.root + part.name, "start": part.start, "end": part.end}
                    for part in unit.parts
                ],
                "repeat": unit.repeat,
                "share": unit.share,
            }
            for unit in origin.units
        ],
        "tokens": len(row.ids),
        "padding": row.padding,
        "untraced_reason": record.untraced_reason,
        "stretches": [_stretch(record, *stretch, tokens=tokens) for stretch in record.stretches],
    }


def _stretch(record: Record, first: int, end: int, description: str, *, tokens: bool) -> dict[str, Any]:
    decoder, ids = record.split.decoder(), record.row.ids[first:end].tolist()
    pieces = decoder.pieces(ids)
    stretch: dict[str, Any] = {"first": first, "end": end, "source": description or None}
    stretch["text"] = "".join(piece.text for piece in pieces)
    if record.row.targets is not None:
        stretch["targets"] = int(record.row.targets[first:end].sum())
    if tokens:
        stretch["ids"] = ids
        if record.row.targets is not None:
            stretch["loss_mask"] = record.row.targets[first:end].astype(int).tolist()
        stretch["pieces"] = [decoder.token(token_id) for token_id in ids]
    return stretch
