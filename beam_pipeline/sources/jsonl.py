"""JSON lines: a JSON object per line, the document's text under one of its keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import orjson

from beam_pipeline.input_options import InputConfig
from beam_pipeline.sources.lines import invalid_utf8, line_bounds, whole_lines, without_bom
from beam_pipeline.sources.units import BadRecord, Part, Records, utf8_sizes


def read(file: BinaryIO, part: Part, options: InputConfig) -> Iterator[Records]:
    """The documents of a byte range. An empty line counts as a blank document."""
    for position, whole in whole_lines(file, part.start, part.end):
        offset, block = without_bom(position, whole)
        starts, ends = line_bounds(block)
        texts: list[str] = []
        kept: list[int] = []
        bad: list[BadRecord] = []
        for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            text, reason = _text(block[start:end], options.text_key)
            if reason is None:
                texts.append(text)
                kept.append(index)
            else:
                bad.append(BadRecord(part.name, offset + start, reason, block[start:end]))
        places = starts[np.array(kept, np.int64)] + offset
        yield Records(texts, places, utf8_sizes(texts), bad)


def _text(line: bytes, key: str) -> tuple[str, str | None]:
    """The text of a line, or the reason why it has none."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if not line.strip():
            return "", None
        return "", invalid_utf8(line) or f"broken JSON ({error})"
    if not isinstance(record, dict):
        return "", f"a JSON {type(record).__name__} where an object with the key {key!r} is needed"
    if key not in record:
        return "", f"no key {key!r} (--text_key names it); the keys are {sorted(record)[:10]}"
    text = record[key]
    if not isinstance(text, str):
        return "", f"the value of {key!r} is of type {type(text).__name__}, not a string"
    return text, None
