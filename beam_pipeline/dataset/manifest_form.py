"""The form of a manifest (docs/dataset-format.md): its keys, and the types of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from beam_pipeline.dataset.shards import EXTENSIONS
from beam_pipeline.option_values import DOCUMENT_FORMATS, ROW_FORMATS
from beam_pipeline.tokenization.description import SPECIAL_NAMES

_HEX_8, _HEX_16, _HEX_64 = (re.compile(f"[0-9a-f]{{{digits}}}") for digits in (8, 16, 64))
_COUNT = "a non-negative whole number"
_NUMBER = "a whole number"
_PATH = re.compile(r"(?!\.\.?(/|$))[^/]+(/(?!\.\.?(/|$))[^/]+)*")  # below its folder
_NAME = re.compile(rf"[^/]+\.({'|'.join(EXTENSIONS.values())})")
_OUTPUT_FORMAT = re.compile("|".join(EXTENSIONS))
_CONVERTED_FROM = {"path": str, "output_format": _OUTPUT_FORMAT, "fingerprint": _HEX_64}
_FILES = [{"path": _PATH, "bytes": _COUNT, "crc32c": _HEX_8}]
_SPLITS = [[str, float]]
_OPTIONAL = {"offsets_crc32c"}  # keys that earlier releases did not write

_VERSION_1 = {
    "split": str,
    "splits": [str],
    "max_length": range(1, 2**20 + 1),
    "shard_size": (_COUNT, None),
    "seed": _NUMBER,
    "features": [str],
    "num_records": _COUNT,
    "shards": [
        {"name": _NAME, "records": _COUNT, "bytes": _COUNT, "crc32c": _HEX_8, "rows_checksum": _HEX_16}
    ],
    "totals": dict.fromkeys(("documents", "bytes", "tokens", "rows", "padding"), _COUNT),
    "excluded": dict.fromkeys(("records", "blank_documents", "bad_records", "duplicate_documents"), _COUNT),
    "rows_checksum": _HEX_16,
    "tokenizer": {
        "path": re.compile(r"\.\./tokenizer"),
        "sha256": _HEX_64,
        "vocab_size": range(1, 2**21 + 1),
        "special_token_ids": {**dict.fromkeys(SPECIAL_NAMES, (_COUNT, None)), "pad": _COUNT},
        "all_special_ids": [_COUNT],
    },
    "config": {
        "splits": dict,
        "max_length": _COUNT,
        "packing": str,
        "shard_size": (_COUNT, None),
        "num_shards": (_COUNT, None),
        "shuffle": re.compile("global|none"),
        "seed": _NUMBER,
        "attention_mask": bool,
        "segment_ids": bool,
        "position_ids": bool,
    },
    "inputs": [{"path": str, "bytes": _COUNT}],
    "fingerprint": _HEX_64,
}
_VERSION_2 = {
    **_VERSION_1,
    "files": _FILES,
    "tokenizer": {**_VERSION_1["tokenizer"], "control_ids": [_COUNT], "files": _FILES},
    "max_length": (_VERSION_1["max_length"], None),
    "config": {**_VERSION_1["config"], "splits": _SPLITS, "max_length": (_COUNT, None)},
    "shards": [{**_VERSION_1["shards"][0], "offsets_crc32c": _HEX_8}],
    "bytes_version": _COUNT,
    "versions": {"tokenmill": str, "tokenizers": str},
}
# Added to version 2 later, so it may be absent.
_ENGINES = [
    {
        "name": str,
        "version": str,
        "documents": _COUNT,
        "left_to_hf": {"documents": _COUNT, "bytes": _COUNT, "reasons": dict},
    }
]


def form_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each deviation of a manifest from the form of its version."""
    if manifest["version"] > 1:
        yield from _mismatches(manifest, _VERSION_2, "")
        yield from _mismatches(manifest.get("engines", []), _ENGINES, "engines")
        yield from _format_defects(manifest)
        return
    yield from _mismatches(manifest, _VERSION_1, "")
    if "checksum" in manifest:
        yield "version is 1, but it has a checksum, which only version 2 has: its version was changed"
    config = manifest.get("config")
    splits = config.get("splits") if isinstance(config, dict) else None
    if isinstance(splits, dict) and not all(type(share) is float for share in splits.values()):
        yield f"config.splits is {splits}, not an object of shares"


def _format_defects(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Checks what depends on the format of the shards."""
    output_format = manifest.get("output_format", "tfrecord")
    yield from _mismatches(output_format, _OUTPUT_FORMAT, "output_format")
    if "converted_from" in manifest:
        yield from _mismatches(manifest["converted_from"], _CONVERTED_FROM, "converted_from")
    if output_format == "megatron":
        yield from _mismatches(manifest.get("shards"), [{"index_crc32c": _HEX_8}], "shards")
    of_documents = manifest.get("max_length", 0) is None
    if "max_length" in manifest and output_format not in (DOCUMENT_FORMATS if of_documents else ROW_FORMATS):
        yield f"max_length is {manifest['max_length']!r}, which is impossible for {output_format!r}"


def _mismatches(value: Any, form: Any, place: str) -> Iterator[str]:
    """Yields a message for each part of a value that does not match its form.

    The form of an object is a dict of its values' forms. The form of a list is a list with one form for all items, or
    with one form per item. A tuple holds alternatives.
    """
    if isinstance(form, dict) and isinstance(value, dict):
        for key, part in form.items():
            name = f"{place}.{key}" if place else key
            if key in value:
                yield from _mismatches(value[key], part, name)
            elif key not in _OPTIONAL:
                yield f"{name} is missing"
    elif isinstance(form, list) and isinstance(value, list):
        if len(form) > 1 and len(value) != len(form):
            yield f"{place} is {value!r:.80}, not a list of {len(form)}"
            return
        for index, item in enumerate(value):
            yield from _mismatches(item, form[index % len(form)], f"{place}[{index}]")
    elif not _fits(value, form):
        yield f"{place} is {value!r:.80}, not {_describe(form)}"


def _fits(value: Any, form: Any) -> bool:
    if isinstance(form, tuple):
        return any(_fits(value, one) for one in form)
    if isinstance(form, re.Pattern):
        return isinstance(value, str) and form.fullmatch(value) is not None
    if form in (_COUNT, _NUMBER):
        return type(value) is int and (form is _NUMBER or value >= 0)
    if isinstance(form, range):
        return type(value) is int and value in form
    return value is None if form is None else isinstance(form, type) and type(value) is form


def _describe(form: Any) -> str:
    if isinstance(form, tuple):
        return " or ".join(map(_describe, form))
    if isinstance(form, re.Pattern):
        return f"text of the form {form.pattern}"
    if isinstance(form, range):
        return f"a whole number from {form[0]} to {form[-1]}"
    if isinstance(form, list | dict):
        return "a list" if isinstance(form, list) else "an object"
    names = {str: "text", dict: "an object", bool: "true or false", float: "a share", None: "null"}
    return form if isinstance(form, str) else names[form]
