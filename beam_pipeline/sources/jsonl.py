"""JSON lines: one JSON object per line, with the document's text under one of its keys."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import orjson

from beam_pipeline.native.texts import json_texts
from beam_pipeline.options.input_options import InputConfig
from beam_pipeline.sources.content import HEAD, Readable
from beam_pipeline.sources.conversations import document_of, messages_key, no_messages_reason
from beam_pipeline.sources.lines import BOM, line_bounds, undecodable, whole_lines, without_bom
from beam_pipeline.sources.text_keys import has_key, text_of, value_of
from beam_pipeline.sources.units import BadRecord, Part, Records
from beam_pipeline.support.texts import Texts
from tokenmill_reader.console.spelling import suggestion

_MOST_OF_FIRST = 1 << 20  # bytes: a longer record is not checked before the run
_MOST_DIGITS = 4000  # Python refuses to parse ints that have a few more
_SURROGATE = re.compile("[\ud800-\udfff]")


def read(file: BinaryIO, part: Part, options: InputConfig, columns: Sequence[str] = ()) -> Iterator[Records]:
    """Yields the documents of a byte range. An empty line counts as a blank document."""
    for position, raw_block in whole_lines(file, part.start, part.end):
        offset, block = without_bom(position, raw_block)
        starts, ends = line_bounds(block)
        records = _read_lines(part.name, offset, block, (starts, ends), options)
        if columns:
            indices = np.searchsorted(starts + offset, records.places)
            spans = map(slice, starts[indices].tolist(), ends[indices].tolist())
            lines = [block[span] for span in spans]
            records = replace(records, columns=_columns(lines, columns, options))
        yield replace(records, crc=google_crc32c.value(raw_block))


def _columns(lines: list[bytes], columns: Sequence[str], options: InputConfig) -> dict[str, list[Any]]:
    """Returns the values of other keys of lines that are records with a text, or blank."""
    records = [{} for _ in lines]
    for index, line in enumerate(lines):
        # What was enough for the text of a line may not be enough for the rest of it, whose values are then unknown.
        with contextlib.suppress(ValueError, RecursionError):
            records[index] = _parse_record(line, options) if line.strip() else {}
    return {name: [value_of(record, name) for record in records] for name in columns}


def missing_key_reason(file: Readable, options: InputConfig) -> str | None:
    """Returns the reason why no record at a file's beginning has a text, or None if one has, or none is read there.

    Args:
        file: The content, positioned at its beginning.
        options: The key is `text_key`.
    """
    head = b""
    while b"\n" not in head.strip() and len(head) < _MOST_OF_FIRST:
        piece = file.read(max(HEAD, len(head)))
        if not piece:
            head += b"\n"  # the last line may lack it
            break
        head += piece
    records = []
    for line in head[: head.rfind(b"\n") + 1].removeprefix(BOM).split(b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            records.append(_parse_record(line, options))
    records = [record for record in records if isinstance(record, dict)]
    if not records:
        return None
    keys = sorted(records[0])
    if options.content == "conversation":
        if any(messages_key(record, options.messages_column) for record in records):
            return None
        return f"its first records have {no_messages_reason(keys, options.messages_column)}"
    if any(has_key(record, options.text_key) for record in records):
        return None
    return (
        f"its first records have no key {options.text_key!r} (set by --text_key); the keys of the first are "
        f"{keys[:20]}{suggestion(options.text_key, keys)}"
    )


def _read_lines(
    name: str, offset: int, block: bytes, bounds: tuple[np.ndarray, np.ndarray], options: InputConfig
) -> Records:
    """Reads the lines of a block: most of them by compiled code, and each of the others on its own."""
    starts, ends = bounds
    texts, is_read = Texts.of([]), np.zeros(len(starts), bool)
    if options.content != "conversation" and options.encoding == "utf-8":
        texts, is_read = json_texts(block, starts, ends, options.text_key)
    if is_read.all():
        return Records(texts, starts + offset)
    parsed, good_numbers, bad_records = [], np.flatnonzero(is_read).tolist(), []
    for number in np.flatnonzero(~is_read).tolist():
        line = block[starts[number] : ends[number]]
        text, reason = _parse_text(line, options)
        if reason is None:
            parsed.append(text)
            good_numbers.append(number)
        else:
            bad_records.append(BadRecord(name, int(starts[number]) + offset, reason, line))
    joined = Texts.join([texts.take(np.flatnonzero(is_read)), Texts.of(parsed)])
    good = np.array(good_numbers, np.int64)
    order = np.argsort(good)
    return Records(joined.take(order), starts[good[order]] + offset, bad_records)


def _parse_text(line: bytes, options: InputConfig) -> tuple[str, str | None]:
    """Returns (text, None), or ("", the reason why the line has no text)."""
    if not line.strip():
        return "", None
    try:
        record = _parse_record(line, options)
    except ValueError as error:
        return "", undecodable(line, options.encoding) or f"broken JSON ({error}){_line_end_hint(line)}"
    except RecursionError:
        return "", "broken JSON (its lists and objects are nested too deeply)"
    if options.content == "conversation":
        return document_of(record, options.messages_column)
    key = options.text_key
    if not isinstance(record, dict):
        return "", f"expected a JSON object with the key {key!r}, got a JSON {type(record).__name__}"
    text, reason = text_of(record, key, options.text_separator)
    if surrogate := _SURROGATE.search(text):
        code = f"\\u{ord(surrogate[0]):04x}"
        return "", f"the value of {key!r} has {code}, half of a surrogate pair, which is no character"
    return text, reason


def _parse_record(line: bytes, options: InputConfig) -> Any:
    """Parses a line by orjson, or by Python's json if that accepts it although orjson does not: NaN, for example.

    Megatron-LM's script reads with json, and other keys than the text's should not make a record bad.

    Raises:
        ValueError: If the line is not JSON.
        RecursionError: If it is nested too deeply.
    """
    content = line.decode(options.encoding, options.encoding_errors)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(content, parse_int=_parse_int)
        except ValueError:
            raise error from None


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def _line_end_hint(line: bytes) -> str:
    """Returns a remedy if the line contains CR, which other programs may interpret as a line end."""
    if b"\r" not in line.strip():
        return ""
    return "; it contains CR characters: if they end lines, convert them: tr '\\r' '\\n' < FILE > NEW"
