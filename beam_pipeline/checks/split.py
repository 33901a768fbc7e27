"""Checks of one split, except for those of its shards' content."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from beam_pipeline.checks.folder import unknown_notes
from beam_pipeline.checks.manifest import manifest_defects
from beam_pipeline.checks.shards import ShardFindings, check_file
from beam_pipeline.checks.tokenizer import check_tokenizer
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.forms import TAILS_FORM, UNIT_FORM
from beam_pipeline.dataset.manifest import dataset_of, form_defects, read_inputs
from beam_pipeline.dataset.shards import files_of_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.formats.choice import format_of
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from tokenmill_reader.format.json_form import mismatches
from tokenmill_reader.format.json_text import parse_own_json
from tokenmill_reader.format.manifest import checksum_defect, describe_file
from tokenmill_reader.format.manifest_form import STATISTICS_FORM
from tokenmill_reader.format.names import (
    MANIFEST,
    REPORT,
    SCHEMA,
    SHARD_NAME,
    STATISTICS,
    TRANSFORM_FN,
    UNITS,
)


@dataclass
class SplitFindings:
    """The findings in a split before its shards are read."""

    folder: str
    """The split's folder."""
    manifest: dict[str, Any] | None
    """None if it cannot be read. Then nothing else can be checked."""
    defects: list[str] = field(default_factory=list)
    """A message for each defect."""
    notes: list[str] = field(default_factory=list)
    """A message for each note, which is not a defect."""
    damaged: set[str] = field(default_factory=set)
    """The listed files that differ from the manifest. Their content is not checked any further."""


def examine_split(folder: str) -> SplitFindings:
    """Checks a split, except for its shards."""
    try:
        data, manifest = manifests.parse_manifest(folder)
    except DataError as error:
        return SplitFindings(folder, None, [str(error)])
    except OSError as error:
        return SplitFindings(folder, None, [f"{folder}/{MANIFEST}: cannot be read: {error}"])
    path = filesystem.join(folder, MANIFEST)
    findings = SplitFindings(folder, manifest)
    checksum_message = checksum_defect(data, manifest)
    form_messages = list(form_defects(manifest))
    findings.defects += [
        f"{path}: {defect}" for defect in ([checksum_message] if checksum_message else []) + form_messages
    ]
    if form_messages:
        findings.manifest = None
        return findings
    findings.defects += [f"{path}: {defect}" for defect in manifest_defects(manifest)]
    if (name_message := manifests.name_defect(folder, manifest)) is not None:
        findings.defects.append(f"{folder}: {name_message}")
    _check_names(findings)
    # Object stores do not resolve `..`.
    tokenizer_folder = manifest["tokenizer"]["path"].removeprefix("../")
    tokenizer_folder = filesystem.join(dataset_of(folder), tokenizer_folder)
    findings.defects += check_tokenizer(tokenizer_folder, manifest["tokenizer"])
    for file in manifest["files"]:
        defects = list(check_file(folder, file))
        findings.defects += defects
        if defects:
            findings.damaged.add(file["path"])
    findings.defects += _check_split_files(folder, manifest)
    findings.defects += _check_content(findings, SCHEMA, _check_schema)
    sources: set[str] = set()
    findings.defects += _check_content(findings, UNITS, partial(_check_units, sources))
    findings.defects += _check_inputs(folder, manifest, sources)
    return findings


def conclude_split(findings: SplitFindings, shards: ShardFindings) -> list[str]:
    """Returns all defects of a split, given the findings in its shards."""
    defects = [*findings.defects, *shards.messages(findings.folder)]
    manifest = findings.manifest
    if shards.num_defects:
        return defects  # sums over damaged shards are meaningless
    for name in ("tokens", "padding", "targets"):
        total, expected = getattr(shards.statistics, name), manifest["totals"].get(name, 0)
        if total != expected:
            defects.append(f"{findings.folder}: {total} {name} in the shards, {expected} in the manifest")

    def check(data: bytes, manifest: Mapping[str, Any]) -> Iterator[str]:
        yield from _check_statistics(parse_own_json(data), manifest, shards.statistics)

    return defects + _check_content(findings, STATISTICS, check)


def _check_names(findings: SplitFindings) -> None:
    """Finds files that the manifest does not name."""
    folder, manifest = findings.folder, findings.manifest
    known_names = {MANIFEST, STATISTICS, UNITS, SCHEMA}
    known_names |= {name for shard in manifest["shards"] for name in files_of_shard(shard)}
    known_names |= {entry["path"] for entry in manifest["files"]}
    known_names.add(REPORT)  # the output of `report` for a split
    unreadable: list[OSError] = []
    unknown = []
    for path, _ in filesystem.list_files(folder, unreadable=unreadable):
        name = path[len(folder) :].lstrip("/")
        if name in known_names or name.startswith(f"{TRANSFORM_FN}/"):
            continue
        if SHARD_NAME.fullmatch(name):
            findings.defects.append(
                f"{path}: a shard that the manifest does not name; another run wrote it: delete it"
            )
        else:
            unknown.append(path)
    findings.defects += [f"{error.filename}: cannot be listed: {error}" for error in unreadable]
    findings.notes += unknown_notes(unknown)


def _check_content(findings: SplitFindings, name: str, check: Any) -> list[str]:
    """Returns the defects that `check` finds in a file's content, prefixed with the file's path."""
    path, manifest = filesystem.join(findings.folder, name), findings.manifest
    if name in findings.damaged:
        return []
    try:
        if not filesystem.exists(path):
            return []  # the check of the listed files reports it
        return [f"{path}: {defect}" for defect in check(filesystem.read_bytes(path), manifest)]
    except OSError as error:
        return [f"{path}: cannot be read: {error}"]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        return [f"{path}: cannot be read: {error!r}"]


def _check_split_files(folder: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks the files that follow from the format and the shards."""
    listed = {file["path"]: file for file in manifest["files"]}
    for name, data in format_of(manifest).split_files(manifest["shards"]).items():
        if listed.get(name) != describe_file(name, data):
            yield f"{folder}/{MANIFEST}: its entry of {name} does not match the shards"


def _check_schema(data: bytes, manifest: Mapping[str, Any]) -> Iterator[str]:
    vocab_size = manifest["tokenizer"]["vocab_size"]
    if data != manifests.schema_pbtxt(tuple(manifest["features"]), manifest["max_length"], vocab_size):
        yield "does not describe the records according to the manifest"


def _check_units(sources: set[str], data: bytes, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks units.jsonl, and adds the files that it names to `sources`."""
    *lines, last_line = data.decode().split("\n")[:-1]
    units = [parse_own_json(line) for line in lines]
    tails = parse_own_json(last_line)
    for number, unit in enumerate(units):
        yield from mismatches(unit, UNIT_FORM, f"line {number + 1}")
    yield from mismatches(tails, TAILS_FORM, "the last line")
    for number, unit in enumerate(units):
        if WorkUnit.from_json(lines[number]).index != number:
            yield f"line {number + 1} is work unit {unit['unit']}, not {number}"
    if tails.get("tails") is not True or tails["unit"] != len(units):
        yield f"its last line does not describe the tails of {len(units)} work units"
    rows = sum(unit["rows"] for unit in units) + tails["rows"]
    if rows != manifest["num_records"]:
        yield f"the units' rows add up to {rows}, num_records is {manifest['num_records']}"
    tail_tokens = sum(unit["tail"] for unit in units)
    if tails["rows"] != -(-tail_tokens // (manifest["max_length"] or 1)):
        yield f"{tail_tokens} tokens in the tails do not make {tails['rows']} rows"
    sources |= {unit["root"] + part[0] for unit in units for part in unit["parts"]}


def _check_inputs(folder: str, manifest: Mapping[str, Any], sources: set[str]) -> Iterator[str]:
    """Checks the list of inputs, and that it has all `sources` of the work units."""
    unknown = set(sources)
    try:
        for path, _ in read_inputs(dataset_of(folder), manifest):
            unknown.discard(path)
    except (DataError, OSError) as error:
        yield str(error)
        return
    if unknown:
        yield f"{folder}/{UNITS}: names {len(unknown)} files that are not inputs, such as {min(unknown)}"


def _check_statistics(
    recorded: Mapping[str, Any], manifest: Mapping[str, Any], shard_statistics: SplitStatistics
) -> Iterator[str]:
    """Recomputes the values that follow from the rows or from other values. For documents, only sums can be checked."""
    defects = [*mismatches(recorded, STATISTICS_FORM, "")]
    if defects:
        yield from defects
        return
    totals = manifest["totals"]
    histograms = {name: recorded[name] for name in ("document_tokens", "document_bytes")}
    ratios = recorded["document_bytes_per_token"]["counts"]
    turns = recorded.get("document_turns", {"counts": []})["counts"]
    expected = SplitStatistics(
        shard_statistics.token_counts,
        *(_pad_histogram(histogram["counts"]) for histogram in histograms.values()),
        np.array(ratios, np.int64),
        shard_statistics.row_fill,
        _pad_histogram(turns),
        shard_statistics.row_targets,
        *(histogram["max"] for histogram in histograms.values()),
        documents=totals["documents"],
        bytes=totals["bytes"],
        tokens=shard_statistics.tokens,
        rows=shard_statistics.rows,
        padding=shard_statistics.padding,
        targets=shard_statistics.targets,
    ).to_json()
    for key in sorted({*expected, *recorded}):
        if not _is_close(recorded.get(key), expected.get(key)):
            message = "its token counts differ from those of the shards" if key == "token_counts" else ""
            yield message or f"its {key} does not match the shards and the manifest"
    for name, histogram in histograms.items():
        if sum(histogram["counts"]) != totals["documents"]:
            yield f"{name} counts {sum(histogram['counts'])} documents, the manifest specifies {totals['documents']}"
        elif totals["documents"] and not histogram["edges"][-2] <= histogram["max"] < histogram["edges"][-1]:
            yield f"{name}.max is {histogram['max']}, which is not in the last bin with documents"
    if turns and sum(turns) != totals["documents"]:
        yield f"document_turns counts {sum(turns)} documents, the manifest specifies {totals['documents']}"
    if sum(ratios) > totals["documents"]:
        yield f"document_bytes_per_token counts {sum(ratios)} documents, but there are {totals['documents']}"


def _pad_histogram(counts: Sequence[int]) -> np.ndarray:
    """Returns the counts of a length histogram, extended with zeros to all bins."""
    padded = SplitStatistics.empty(0).document_tokens
    padded[: len(counts)] = counts
    return padded


def _is_close(first: Any, second: Any) -> bool:
    """Compares values, but ignores the last bits of floats, which may differ between versions of libraries."""
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-12, abs_tol=1e-12)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_is_close(first[key], second[key]) for key in first)
    return type(first) is type(second) and first == second
