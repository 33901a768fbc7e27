"""Reads benchmarks: the items whose texts a corpus should not contain, in files of any format of the input."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from beam_pipeline.options.input_options import DatasetConfig, InputConfig
from beam_pipeline.sources.huggingface import is_saved_dataset, saved_splits
from beam_pipeline.sources.plan import InputPlan, plan
from beam_pipeline.sources.reading import describe, read_unit
from beam_pipeline.sources.units import BadRecord, WorkUnit
from beam_pipeline.support.amounts import megabytes
from beam_pipeline.support.errors import DataError, UsageError

MOST_BYTES = 256 << 20
"""The most text of all benchmarks. Workers need about ten times as much memory."""


@dataclass(frozen=True)
class Benchmark:
    """The items of one file."""

    path: str
    """The file's path."""
    items: list[tuple[str, ...]]
    """The texts of each item, one for each field, "" if it is blank."""


def read_benchmarks(patterns: Sequence[str], fields: Sequence[str]) -> list[Benchmark]:
    """Reads the files, in the order of the patterns, and of their paths. A file that several match is read once.

    Args:
        patterns: Files, globs, folders, or folders that `datasets` has saved.
        fields: Keys or columns, as `--text_key`. Ignored for text files, whose documents are items with one text.

    Raises:
        UsageError: If a pattern matches no file, or a file has no items, not all fields, or too much text.
        DataError: If a record cannot be read or lacks a field.
    """
    by_path: dict[str, Benchmark] = {}
    remaining = MOST_BYTES
    for pattern in patterns:
        plans = [_plan(pattern, field) for field in fields]
        for file in plans[0].files:
            if file.path in by_path:
                continue
            if file.format == "text" and len(fields) > 1:
                raise UsageError(
                    f"--decontaminate {file.path}: an item of a text file is one text, without the fields "
                    f"{' and '.join(fields)} (set by --decontaminate_fields); use jsonl or parquet"
                )
            items = _read_items(plans, file.path, remaining)
            if not items:
                raise UsageError(
                    f"--decontaminate {file.path}: has no items; leave it out, or check the file"
                )
            remaining -= sum(len(text) for texts in items for text in texts)
            by_path[file.path] = Benchmark(file.path, items)
    return list(by_path.values())


def _plan(pattern: str, field: str) -> InputPlan:
    """Plans to read one field of the files. Messages are about `--decontaminate`."""
    given = {"text_key": field, "unit_bytes": MOST_BYTES}
    try:
        if is_saved_dataset(pattern):
            splits = "+".join(saved_splits(pattern))
            return plan(InputConfig(dataset=DatasetConfig(name=pattern, split=splits), **given))
        return plan(InputConfig(input=(pattern,), **given))
    except UsageError as error:
        raise UsageError(_of_benchmark(str(error))) from error


def _of_benchmark(message: str) -> str:
    """Returns a message about the input as one about benchmarks."""
    message = message.replace("--text_key", "--decontaminate_fields")
    message = re.sub("; --encoding [^;]*", "; benchmarks must be UTF-8", message)
    return re.sub("--(input|dataset_name)", "--decontaminate", message)


def _read_items(plans: Sequence[InputPlan], path: str, most_bytes: int) -> list[tuple[str, ...]]:
    """Returns the items of a file, in its order, each with a text for each plan."""
    texts: list[dict[int, str]] = []  # by the place of the record
    for field_plan in plans:
        [file] = (file for file in field_plan.files if file.path == path)
        if file.size > most_bytes:
            raise _too_large(path)
        by_place: dict[int, str] = {}
        for place, text in _texts(field_plan, path):
            most_bytes -= len(text)
            if most_bytes < 0:
                raise _too_large(path)
            by_place[place] = text
        texts.append(by_place)
    places = sorted({place for by_place in texts for place in by_place})
    return [tuple(by_place.get(place, "") for by_place in texts) for place in places]


def _texts(field_plan: InputPlan, path: str) -> Iterator[tuple[int, str]]:
    """Yields the places and texts of a file's records."""
    name = path.removeprefix(field_plan.root)
    for unit in field_plan.units:
        parts = tuple(part for part in unit.parts if part.name == name)
        if not parts:
            continue
        alone = WorkUnit(unit.index, unit.format, unit.root, parts, unit.bytes)
        try:
            for batch in read_unit(alone, field_plan.config):
                for record in batch.bad_records:
                    raise _bad_record(alone, record)
                yield from zip(batch.places.tolist(), batch.texts, strict=True)
        except UsageError as error:
            raise UsageError(f"--decontaminate: {_of_benchmark(str(error))}") from error


def _bad_record(unit: WorkUnit, record: BadRecord) -> DataError:
    return DataError(
        f"--decontaminate: {_of_benchmark(describe(unit, record))}; correct the record, or take it out of the file"
    )


def _too_large(path: str) -> UsageError:
    return UsageError(
        f"--decontaminate {path}: with it, the benchmarks have more than {megabytes(MOST_BYTES)} of text; if it is a "
        "benchmark, and no corpus, use several runs with fewer benchmarks each"
    )


def display_names(paths: Sequence[str]) -> list[str]:
    """Returns a short name of each file: its name, after as many folders as are needed to distinguish it.

    >>> display_names(["/data/gsm8k/test.jsonl", "/data/mmlu/test.jsonl", "/data/arc.jsonl"])
    ['gsm8k/test.jsonl', 'mmlu/test.jsonl', 'arc.jsonl']
    """
    parts = [Path(path).parts for path in paths]
    names = []
    for own in parts:
        count = 1
        while count < len(own) and sum(other[-count:] == own[-count:] for other in parts) > 1:
            count += 1
        names.append("/".join(own[-count:]))
    return names
