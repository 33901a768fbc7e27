"""The verb `inspect`: shows a summary of a dataset, records, or removed documents."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from beam_pipeline.options.command_line import Parsed, parse
from beam_pipeline.options.dataset_options import InspectConfig
from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import counted
from beam_pipeline.support.console import print_document
from beam_pipeline.support.errors import DataError, UsageError
from beam_pipeline.verbs.inspection_documents import Record, record_document, summary_document
from beam_pipeline.verbs.inspection_removed import removed_document, removed_lines
from beam_pipeline.views.colours import Coloured, coloured
from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.describing import describe_units, stretches_of
from beam_pipeline.views.reading import FinishedSplit, Origin, Row, open_dataset
from beam_pipeline.views.tracing import NotTraced, Tracer, TraceTooSlow
from tokenmill_reader.console.escaping import visible
from tokenmill_reader.console.streams import print_unescaped
from tokenmill_reader.format.manifest import output_format_of

_ROWS_PER_SEARCH = 1024
_CONTEXT = 60  # characters shown on each side of a match of `--grep`
_AUTO_SECONDS = 10.0  # approximate limit of `--trace auto`


def main(argv: Sequence[str] | Parsed) -> None:
    """Runs the verb with these arguments.

    Raises:
        UsageError: If options are wrong, or the dataset has no such record.
        DataError: If the folder is not a finished dataset, or `--grep` finds nothing.
    """
    config, _ = parse(InspectConfig, argv)
    splits = open_dataset(filesystem.absolute(config.dataset))
    if config.grep is not None:
        _print_matches(config, splits)
    elif config.removed is not None:
        if config.console.json:
            print_document(removed_document(splits[0], config.removed, config.most))
        else:
            _print_lines(removed_lines(splits[0], config.removed, config.most))
    elif config.record:
        record = _find(config, splits)
        if config.console.json:
            print_document(record_document(record, tokens=config.tokens))
        else:
            _print_lines(_record_lines(record, config))
    elif config.console.json:
        print_document(summary_document(splits))
    else:
        _print_lines(_summary_lines(splits))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        if isinstance(line, Coloured):
            print_unescaped(line)
        else:
            print(line, flush=True)


def _summary_lines(splits: Sequence[FinishedSplit]) -> Iterator[str]:
    """Yields the lines of the summary."""
    first_manifest = splits[0].manifest
    tokenizer = first_manifest["tokenizer"]
    inputs = first_manifest["inputs"]
    yield f"inputs     {counted(inputs['files'], 'file')}, {inputs['input_bytes']:,} bytes"
    yield f"tokenizer  {splits[0].tokenizer_folder}, {tokenizer['vocab_size']:,} tokens"
    if first_manifest["max_length"] is None:
        yield "rows       whole documents, in the order of the input"
    else:
        yield f"rows       {first_manifest['max_length']} tokens: {', '.join(first_manifest['features'])}"
    yield f"format     {output_format_of(first_manifest)}"
    excluded = {name.replace("_", " "): count for name, count in first_manifest["excluded"].items()}
    records = excluded.pop("records")
    exclusions = ", ".join(f"{count:,} {name}" for name, count in excluded.items() if count)
    yield f"records    {records:,} read, left out: {exclusions or 'none'}"
    yield ""
    header = (
        "split",
        "documents",
        "bytes",
        "tokens",
        "bytes/token",
        "tokens/document",
        "rows",
        "full",
        "shards",
    )
    table = [header, *(_figures(split) for split in splits)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        name, *figures = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([name.strip().ljust(widths[0]), *figures])


def _figures(split: FinishedSplit) -> tuple[str, ...]:
    totals = split.manifest["totals"]
    documents, tokens = max(1, totals["documents"]), max(1, totals["tokens"])
    slots = max(1, totals["tokens"] + totals["padding"])
    return (
        split.name,
        f"{totals['documents']:,}",
        f"{totals['bytes']:,}",
        f"{totals['tokens']:,}",
        f"{totals['bytes'] / tokens:.2f}",
        f"{totals['tokens'] / documents:,.1f}",
        f"{totals['rows']:,}",
        f"{totals['tokens'] / slots:.2%}",
        f"{len(split.manifest['shards']):,}",
    )


def _find(config: InspectConfig, splits: Sequence[FinishedSplit]) -> Record:
    """Returns the record of `--record`, traced to its documents if `--trace` asks for it."""
    name, shard, number = config.record
    split = next((split for split in splits if split.name == name), None)
    if split is None:
        names = ", ".join(split.name for split in splits)
        raise UsageError(f"--record {name}:{shard}:{number}: there is no split {name!r}, only {names}")
    split.decoder()  # raises before the tracing if the tokenizer cannot be loaded
    row = split.row(shard, number)
    origin = split.origin(shard, number)
    tracer, parts, reason = Tracer(split), None, None
    if config.trace != "never":
        try:
            max_seconds = _AUTO_SECONDS if config.trace == "auto" else None
            parts = tracer.trace(origin, row, max_seconds=max_seconds)
        except NotTraced as error:
            hint = "; --trace always takes as long as necessary" if isinstance(error, TraceTooSlow) else ""
            reason = f"{error}{hint}"
    stretches = stretches_of(row, parts, tracer.starts(origin, row))
    return Record(split, shard, number, row=row, origin=origin, stretches=stretches, untraced_reason=reason)


def _record_lines(record: Record, config: InspectConfig) -> Iterator[str]:
    """Yields the lines for one record: its place, its origin and its content."""
    row, origin = record.row, record.origin
    unit = "the tails" if origin.is_of_tails else f"work unit {origin.units[0].index}"
    yield f"record  {record.split.shard_path(record.shard)}, number {record.number}"
    yield (
        f"row     {origin.position:,} of the {origin.rows:,} from {unit}; "
        f"{origin.rank:,} of the split's {record.split.manifest['num_records']:,} before the shuffle"
    )
    yield from _source_lines(origin)
    yield f"tokens  {len(row.ids):,}, and {row.padding:,} of padding"
    if row.targets is not None:
        yield f"targets {int(row.targets.sum()):,} (* with --tokens, green on a terminal)"
    if record.untraced_reason is not None:
        yield f"traced  only to its work unit: {visible(record.untraced_reason, one_line=True)}"
    yield ""
    yield from _content_lines(
        row,
        record.stretches,
        record.split.decoder(),
        control_ids=set(record.split.manifest["tokenizer"]["control_ids"]),
        tokens=config.tokens,
    )


def _source_lines(origin: Origin) -> Iterator[str]:
    if origin.is_of_tails:
        yield "tail    this row was packed from the ends of work units, which did not fill a row there"
    for number, line in enumerate(describe_units(origin.units)):
        yield f"{'source' if number == 0 else '':<6}  {line}"


def _content_lines(
    row: Row,
    stretches: Sequence[tuple[int, int, str]],
    decoder: TextDecoder,
    *,
    control_ids: Collection[int],
    tokens: bool,
) -> Iterator[str]:
    """Yields the row's text or tokens, for each stretch in turn."""
    for start, end, description in stretches:
        remark = f"; {visible(description, one_line=True)}" if description else ""
        yield f"── tokens {start} to {end - 1}{remark}"
        if tokens:
            for piece in decoder.pieces(row.ids[start:end].tolist()):
                for position in range(start + piece.first, start + piece.end):
                    token = decoder.token(int(row.ids[position]))
                    text = repr(piece.text) if position == start + piece.end - 1 else "…"
                    mark = "*" if row.targets is not None and row.targets[position] else " "
                    yield (
                        f"{position:>6}{mark} {int(row.ids[position]):>7}  {visible(token, one_line=True):<24} {text}"
                    )
        else:
            ids = row.ids[start:end].tolist()
            pieces = decoder.pieces(ids)
            if row.targets is not None and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
                yield coloured(pieces, ids, row.targets[start:end], control_ids)
            else:
                yield visible("".join(piece.text for piece in pieces))


def _print_matches(config: InspectConfig, splits: Sequence[FinishedSplit]) -> None:
    """Prints the records whose text matches, each at once unless with --json.

    Raises:
        DataError: If no record matches.
    """
    matches = []
    for match in islice(_matches(config, splits), config.most + 1):
        matches.append(match)
        if len(matches) <= config.most and not config.console.json:
            split, shard, record, text = match
            print(f"{split}:{shard}:{record}  {visible(text, one_line=True)}", flush=True)
    has_more = len(matches) > config.most
    if config.console.json:
        names = ("split", "shard", "record", "text")
        shown = [dict(zip(names, match, strict=True)) for match in matches[: config.most]]
        print_document({"matches": shown, "complete": not has_more})
    elif has_more:
        print(f"… and perhaps more: these are the first {config.most} (--most)")
    if not matches:
        raise DataError(
            f"no record contains {config.grep!r} (a text that continues in the next row is not found)"
        )


def _matches(config: InspectConfig, splits: Sequence[FinishedSplit]) -> Iterator[tuple[str, int, int, str]]:
    """Yields the split, the shard and the number of each record whose text matches, and the text around the match."""
    flags = re.IGNORECASE if config.ignore_case else 0
    pattern = re.compile(config.grep if config.regex else re.escape(config.grep), flags)
    decoder = splits[0].decoder()
    for split in splits:
        for shard in range(len(split.manifest["shards"])):
            rows = enumerate(split.rows(shard))
            while batch := list(islice(rows, _ROWS_PER_SEARCH)):
                texts = decoder.texts([row.ids.tolist() for _, row in batch])
                for (record, _), text in zip(batch, texts, strict=True):
                    if match := pattern.search(text):
                        yield split.name, shard, record, _excerpt(text, *match.span())


def _excerpt(text: str, match_start: int, match_end: int) -> str:
    """Returns a match with the text around it."""
    start, end = max(0, match_start - _CONTEXT), min(len(text), match_end + _CONTEXT)
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"
