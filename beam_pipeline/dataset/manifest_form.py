"""The forms of a split's JSON files (docs/dataset-format.md): their keys, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset.json_form import (
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
from beam_pipeline.dataset.shards import EXTENSIONS
from beam_pipeline.options.input_options import NOT_IN_ALL_MANIFESTS, InputConfig, parse_encoding
from beam_pipeline.options.option_fields import Option, options_of
from beam_pipeline.options.option_values import DOCUMENT_FORMATS, IDS_COLUMN, ROW_FORMATS, SPLIT_NAME
from beam_pipeline.options.verbs import PrepareConfig
from beam_pipeline.support.errors import UsageError
from beam_pipeline.support.limits import MOST_IDS
from beam_pipeline.tokenization.description import SPECIAL_NAMES

_SHARD_NAME = re.compile(
    rf"{SPLIT_NAME.pattern}-\d{{5,9}}-\d{{1,12}}\.({'|'.join(map(re.escape, EXTENSIONS.values()))})"
)
_OUTPUT_FORMAT = re.compile("|".join(EXTENSIONS))
_FILES = [{"path": RELATIVE_PATH, "bytes": COUNT, "crc32c": HEX_8}]
_ID = range(MOST_IDS)
_POSITIVE = range(1, COUNT[-1] + 1)
_HISTOGRAM = {"counts": [COUNT], "edges": [(float, COUNT)]}


def _form_of(option: Option) -> Any:
    """Returns the form of an option's value in the manifest."""
    if option.choices:
        form: Any = re.compile("|".join(option.choices))
    elif option.kind is int:
        form = (
            NUMBER if option.bounds is None else range(option.bounds[0], (option.bounds[1] or COUNT[-1]) + 1)
        )
    else:
        form = option.kind
    return form if option.required or option.default is not None else (form, None)


_OPTIONS = {each.name: each for each in options_of(PrepareConfig) if each.affects_bytes}
# What reading the dataset again depends on; other options are only shown.
_CONFIG: dict[str, Any] = {
    name: _form_of(_OPTIONS[name])
    for name in (
        *("document", "text_key", "dedup", "parse_special_tokens", "append_eos", "split_by"),
        *("max_length", "packing", "attention_mask", "segment_ids", "position_ids", "shuffle", "seed"),
        *("shard_size", "num_shards"),
    )
}
_CONFIG["max_length"] = (_form_of(_OPTIONS["max_length"]), None)
_CONFIG |= {name: Optional(_form_of(_OPTIONS[name])) for name in NOT_IN_ALL_MANIFESTS}
_CONFIG["text_separator"] = Optional(str)  # its default is a text that --help describes


_MANIFEST = {
    "split": SPLIT_NAME,
    "splits": [SPLIT_NAME],
    "max_length": (_form_of(_OPTIONS["max_length"]), None),
    "shard_size": (_POSITIVE, None),
    "seed": NUMBER,
    "features": [str],
    "output_format": Optional(_OUTPUT_FORMAT),
    "ids_column": Optional(IDS_COLUMN),
    "num_records": COUNT,
    "shards": [
        {
            "name": _SHARD_NAME,
            "records": _POSITIVE,
            "bytes": _POSITIVE,
            "crc32c": HEX_8,
            "rows_checksum": HEX_16,
        }
    ],
    "files": _FILES,
    "totals": dict.fromkeys(("documents", "bytes", "tokens", "rows", "padding"), COUNT),
    "excluded": dict.fromkeys(("records", "blank_documents", "bad_records", "duplicate_documents"), COUNT),
    "engines": [
        {
            "name": str,
            "version": str,
            "documents": COUNT,
            "left_to_hf": {"documents": COUNT, "bytes": COUNT, "reasons": dict},
            "dropped": Optional({"documents": COUNT, "characters": COUNT}),
        }
    ],
    "rows_checksum": HEX_16,
    "tokenizer": {
        "path": re.compile(r"\.\./tokenizer"),
        "sha256": HEX_64,
        "vocab_size": range(1, MOST_IDS + 1),
        "special_token_ids": {**dict.fromkeys(SPECIAL_NAMES, (_ID, None)), "pad": _ID},
        "all_special_ids": [_ID],
        "control_ids": [_ID],
        "converted_by": Optional(str),
        "files": _FILES,
    },
    "config": {**_CONFIG, "splits": [[SPLIT_NAME, Share()]]},
    "inputs": {
        "path": re.compile(r"\.\./inputs\.jsonl"),
        **dict.fromkeys(("files", "input_bytes", "bytes"), COUNT),
        "crc32c": HEX_8,
        "sha256": HEX_64,
    },
    "bytes_version": COUNT,
    "converted_from": Optional({"path": str, "output_format": _OUTPUT_FORMAT, "fingerprint": HEX_64}),
    "versions": {"tokenmill": str, "tokenizers": str},
    "fingerprint": HEX_64,
}

STATISTICS_FORM = {
    **dict.fromkeys(("documents", "bytes", "tokens", "rows", "padding"), COUNT),
    **dict.fromkeys(("fill", "unigram_entropy"), float),
    "token_counts": [COUNT],
    **{key: {**_HISTOGRAM, "mean": float, "max": COUNT} for key in ("document_tokens", "document_bytes")},
    **dict.fromkeys(("document_bytes_per_token", "row_fill"), _HISTOGRAM),
}

UNIT_FORM = {
    "unit": COUNT,
    "format": re.compile("text|jsonl|parquet|arrow"),
    "root": str,
    "parts": [([str, COUNT, COUNT], [str, COUNT, COUNT, COUNT, COUNT])],
    "bytes": COUNT,
    "repeat": COUNT,
    "share": Share(),
    "rows": COUNT,
    "tail": COUNT,
}
"""A line of units.jsonl, except the last."""

TAILS_FORM = {"unit": COUNT, "rows": COUNT}
"""The last line of units.jsonl."""


def form_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each deviation of a manifest from its form."""
    yield from mismatches(manifest, _MANIFEST, "")
    yield from _format_defects(manifest)
    yield from _config_defects(manifest)


def _config_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks the options on which reading a row depends."""
    config = manifest.get("config")
    if not isinstance(config, dict) or not {"max_length", "shard_size", "num_shards"} <= config.keys():
        return
    if config["max_length"] != manifest.get("max_length"):
        yield f"config.max_length is {config['max_length']!r:.80}, but max_length is {manifest.get('max_length')!r:.80}"
    try:
        parse_encoding(str(config.get("encoding", InputConfig.encoding)))
    except UsageError as error:
        yield f"config.encoding: {error}"
    if bool(config["shard_size"]) == bool(config["num_shards"]):
        yield "exactly one of config.shard_size and config.num_shards must be set"


def _format_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks what depends on the format of the shards."""
    output_format = manifest.get("output_format", "tfrecord")
    checksum = {"tfrecord": "offsets_crc32c", "megatron": "index_crc32c"}.get(output_format)
    if checksum:  # of a shard's second file
        yield from mismatches(manifest.get("shards"), [{checksum: HEX_8}], "shards")
    of_documents = manifest.get("max_length", 0) is None
    if "max_length" in manifest and output_format not in (DOCUMENT_FORMATS if of_documents else ROW_FORMATS):
        yield f"max_length is {manifest['max_length']!r:.80}, which is impossible for {output_format!r:.80}"
