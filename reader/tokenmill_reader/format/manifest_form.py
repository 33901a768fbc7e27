"""The forms of a split's JSON files: their keys, the types of their values, and which values contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tokenmill_reader.format.json_form import (
    COUNT,
    HEX_8,
    HEX_16,
    HEX_64,
    NUMBER,
    RELATIVE_PATH,
    Optional,
    Share,
    mismatches,
)
from tokenmill_reader.format.limits import MOST_IDS, MOST_TOKENS_PER_ROW
from tokenmill_reader.format.manifest import ShardList, output_format_of
from tokenmill_reader.format.names import (
    DOCUMENT_FORMATS,
    EXTENSIONS,
    IDS_COLUMN,
    OPTIONAL_FEATURES,
    ROW_FORMATS,
    SPECIAL_NAMES,
    SPLIT_NAME,
    shard_name,
)

_SHARD_NAME = re.compile(
    rf"{SPLIT_NAME.pattern}-\d{{5,9}}-\d{{1,12}}\.({'|'.join(map(re.escape, EXTENSIONS.values()))})"
)
_OUTPUT_FORMAT = re.compile("|".join(EXTENSIONS))
_FILES = [{"path": RELATIVE_PATH, "bytes": COUNT, "crc32c": HEX_8}]
_ID = range(MOST_IDS)
_POSITIVE = range(1, COUNT[-1] + 1)
_HISTOGRAM = {"counts": [COUNT], "edges": [(float, COUNT)]}
_TOKENIZER = {
    "path": re.compile(r"\.\./tokenizer"),
    "sha256": HEX_64,
    "vocab_size": range(1, MOST_IDS + 1),
}
_SHARD = {
    "name": _SHARD_NAME,
    "records": _POSITIVE,
    "bytes": _POSITIVE,
    **dict.fromkeys(("crc32c", "offsets_crc32c", "index_crc32c"), Optional(HEX_8)),
    "rows_checksum": Optional(HEX_16),
}

# The entries that reading the rows needs, besides the shards.
_ROWS_FORM = {
    "split": SPLIT_NAME,
    "splits": [SPLIT_NAME],
    "max_length": (range(1, MOST_TOKENS_PER_ROW + 1), None),
    "features": [re.compile("|".join(("input_ids", *OPTIONAL_FEATURES)))],
    "output_format": Optional(_OUTPUT_FORMAT),
    "num_records": COUNT,
    "tokenizer": _TOKENIZER,
    "fingerprint": HEX_64,
}

_MANIFEST_FORM = {
    **_ROWS_FORM,
    "shard_size": (_POSITIVE, None),
    "seed": NUMBER,
    "ids_column": Optional(IDS_COLUMN),
    "files": _FILES,
    "totals": {
        **dict.fromkeys(("documents", "bytes", "tokens", "rows", "padding"), COUNT),
        "targets": Optional(COUNT),
    },
    "excluded": {
        **dict.fromkeys(("records", "blank_documents", "bad_records", "duplicate_documents"), COUNT),
        "overlong_documents": Optional(COUNT),
    },
    **dict.fromkeys(("removed", "edited"), Optional(dict)),
    "engines": [
        {
            "name": str,
            "version": str,
            "documents": COUNT,
            "left_to_hf": {"documents": COUNT, "bytes": COUNT, "reasons": dict},
            "dropped": Optional({"documents": COUNT, "characters": COUNT}),
            "truncated": Optional({"documents": COUNT, "tokens": COUNT}),
            "infilled": Optional({"documents": COUNT, "whole": COUNT}),
        }
    ],
    "round_trip": Optional(
        {
            **dict.fromkeys(("documents", "changed", "characters"), COUNT),
            "lost": dict.fromkeys(("line breaks", "other white space", "other characters"), Optional(COUNT)),
        }
    ),
    "rows_checksum": HEX_16,
    "tokenizer": {
        **_TOKENIZER,
        "special_token_ids": {**dict.fromkeys(SPECIAL_NAMES, (_ID, None)), "pad": _ID},
        "all_special_ids": [_ID],
        "control_ids": [_ID],
        "chat_template": Optional(HEX_64),
        "files": _FILES,
    },
    "config": {"splits": [[SPLIT_NAME, Share()]]},
    "inputs": {
        "path": re.compile(r"\.\./inputs\.jsonl"),
        **dict.fromkeys(("files", "input_bytes", "bytes"), COUNT),
        "crc32c": HEX_8,
        "sha256": HEX_64,
    },
    "bytes_version": COUNT,
    "converted_from": Optional({"path": str, "output_format": _OUTPUT_FORMAT, "fingerprint": HEX_64}),
    "versions": {"tokenmill": str, "tokenizers": str},
}

STATISTICS_FORM = {
    **dict.fromkeys(("documents", "bytes", "tokens", "rows", "padding"), COUNT),
    "targets": Optional(COUNT),
    **dict.fromkeys(("fill", "unigram_entropy"), float),
    "token_counts": [COUNT],
    **{key: {**_HISTOGRAM, "mean": float, "max": COUNT} for key in ("document_tokens", "document_bytes")},
    **dict.fromkeys(("document_bytes_per_token", "row_fill"), _HISTOGRAM),
    **dict.fromkeys(("document_turns", "row_targets"), Optional(_HISTOGRAM)),
}


def rows_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each defect in the entries that reading the rows needs."""
    form_messages = [*mismatches(manifest, _ROWS_FORM, ""), *_shard_form_defects(manifest, {})]
    yield from form_messages or _rows_value_defects(manifest)


def form_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each deviation of a manifest from its form."""
    yield from mismatches(manifest, _MANIFEST_FORM, "")
    required = {"crc32c": HEX_8, "rows_checksum": HEX_16}
    for output_format, second_file in (("tfrecord", "offsets_crc32c"), ("megatron", "index_crc32c")):
        if output_format_of(manifest) == output_format:
            required[second_file] = HEX_8
    yield from _shard_form_defects(manifest, required)


def value_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each contradiction between values. The manifest's form must be correct."""
    yield from _rows_value_defects(manifest)
    splits, tokenizer = manifest["config"]["splits"], manifest["tokenizer"]
    names, shares = [name for name, _ in splits], [share for _, share in splits]
    if manifest["splits"] != names:
        yield f"splits is {manifest['splits']!r:.200}, but config.splits has {names!r:.200}"
    if abs(sum(shares) - 1) > 1e-9:
        yield f"config.splits: the shares are {shares!r:.200}; they do not add up to 1"
    special = [value for value in tokenizer["special_token_ids"].values() if value is not None]
    for name, values in (
        ("special_token_ids", special),
        *((name, tokenizer[name]) for name in ("all_special_ids", "control_ids")),
    ):
        if max(values, default=0) >= tokenizer["vocab_size"]:
            yield f"tokenizer.{name} has the id {max(values)}, but there are {tokenizer['vocab_size']} ids"


def _shard_form_defects(manifest: Mapping[str, Any], required: Mapping[str, Any]) -> Iterator[str]:
    """Checks the form of the shards, each of which must have the `required` keys, and whether `max_length` allows their
    format.
    """
    output_format, shards = output_format_of(manifest), manifest.get("shards")
    if not (isinstance(shards, ShardList) and _all_have_form(shards, required)):
        entries = [*shards] if isinstance(shards, ShardList) else shards
        shards_entry = {"shards": entries} if "shards" in manifest else {}
        yield from mismatches(shards_entry, {"shards": [{**_SHARD, **required}]}, "")
        for key in _SHARD if isinstance(entries, list) else ():
            count = sum(isinstance(entry, dict) and key in entry for entry in entries)
            if 0 < count < len(entries):
                yield f"only {count} of the {len(entries)} shards have the key {key}"
    has_documents = manifest.get("max_length", 0) is None
    if "max_length" in manifest and output_format not in (DOCUMENT_FORMATS if has_documents else ROW_FORMATS):
        yield f"max_length is {manifest['max_length']!r:.80}, which is impossible for {output_format!r:.80}"


def _all_have_form(shards: ShardList, required: Iterable[str]) -> bool:
    """Whether all shards have the form of `_SHARD`, and the `required` checksums, without a loop over their entries."""
    return (
        shards.sums.keys() >= set(required)
        and all(
            np.min(values, initial=1) >= 1 and np.max(values, initial=1) <= COUNT[-1]
            for values in (shards.records, shards.sizes)
        )
        and all(map(_SHARD_NAME.fullmatch, shards.names))
    )


def _rows_value_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    splits, features, shards = manifest["splits"], manifest["features"], manifest["shards"]
    if len(set(splits)) < len(splits):
        yield f"splits: {max(splits, key=splits.count)!r} occurs twice"
    if manifest["split"] not in splits:
        yield f"split is {manifest['split']!r}, which is not one of its splits {splits!r:.200}"
    if "input_ids" not in features or len(set(features)) < len(features):
        yield f"features is {features!r:.200}, which lacks input_ids, or has a name twice"
    records = sum(shards.records)
    if manifest["num_records"] != records:
        yield f"num_records is {manifest['num_records']}, but its shards have {records} records"
    split, output_format = manifest["split"], output_format_of(manifest)
    expected_names = [
        shard_name(split, number, count, output_format) for number, count in enumerate(shards.records)
    ]
    if shards.names != expected_names:
        for number, (name, expected_name) in enumerate(zip(shards.names, expected_names, strict=True)):
            if name != expected_name:
                yield f"shards[{number}] is named {name!r}, not {expected_name!r}"
