"""JSON lines: a JSON object per line, the document's text under one of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import orjson

from beam_pipeline.sources.lines import split_lines, whole_lines
from beam_pipeline.sources.text import drop_blank
from beam_pipeline.sources.units import BadRecord, DocumentBatch, Part, ReadOptions


def read(file: BinaryIO, part: Part, options: ReadOptions) -> Iterator[DocumentBatch]:
    """The documents of a byte range. Empty lines, and texts of white space alone, are counted, not kept."""
    for offset, block in whole_lines(file, part.start, part.end):
        lines, places = split_lines(block)
        places += offset
        texts, kept, bad = [], [], []
        for index, line in enumerate(lines):
            if offset == 0 and index == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")
            text, reason = _text(line, options.text_key) if line.strip() else ("", None)
            if reason is None:
                texts.append(text)
                kept.append(index)
            else:
                bad.append(BadRecord(part.name, int(places[index]), reason, line))
        yield drop_blank(part.name, texts, places[kept], None, bad)


def _text(line: bytes, key: str) -> tuple[str, str | None]:
    """The text of a line, or the reason why it has none."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return "", f"broken JSON ({error})"
    if not isinstance(record, dict):
        return "", f"a JSON {type(record).__name__} where an object with the key {key!r} is needed"
    if key not in record:
        return "", f"no key {key!r} (--text_key names it); the keys are {sorted(record)[:10]}"
    text = record[key]
    if not isinstance(text, str):
        return "", f"the value of {key!r} is of type {type(text).__name__}, not a string"
    return text, None
