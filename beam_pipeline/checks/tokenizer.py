"""Checks of the folder of a dataset's tokenizer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from beam_pipeline.checks.shards import check_file
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import describe_tokenizer
from tokenmill_reader.format.names import SPECIAL_NAMES


def check_tokenizer(folder: str, recorded: Mapping[str, Any]) -> list[str]:
    """Checks a tokenizer's folder.

    Args:
        folder: The folder.
        recorded: The entry `tokenizer` of a manifest.

    Returns:
        A message for each defect.
    """
    defects = [defect for entry in recorded["files"] for defect in check_file(folder, entry)]
    path = filesystem.join(folder, "tokenizer.json")
    sizes = {entry["path"]: entry["bytes"] for entry in recorded["files"]}
    defects += _unknown_files(folder, sizes)
    try:
        if not filesystem.exists(path):
            return defects or [f"{path}: missing"]
        if (filesystem.size_of(path) or 0) > sizes.get("tokenizer.json", math.inf):
            return defects  # the size is one of them
        if hashlib.sha256(filesystem.read_bytes(path)).hexdigest() != recorded["sha256"]:
            defects.append(f"{path}: not the dataset's tokenizer: its SHA-256 differs from the manifest's")
        return defects or _check_ids(folder, recorded)
    except OSError as error:
        return defects or [f"{path}: cannot be read: {error}"]


def _unknown_files(folder: str, names: Collection[str]) -> Iterator[str]:
    """Yields a message for each file that AutoTokenizer may load, although the run did not write it."""
    unreadable: list[OSError] = []
    for path, _ in filesystem.list_files(folder, unreadable=unreadable):
        if path[len(folder) :].lstrip("/") not in names:
            yield f"{path}: is not a part of the dataset's tokenizer and may change what is loaded; delete it"
    yield from (f"{error.filename}: cannot be listed: {error}" for error in unreadable)


def _check_ids(folder: str, recorded: Mapping[str, Any]) -> list[str]:
    """Compares the tokenizer's ids with the manifest."""
    try:
        tokenizer = describe_tokenizer(folder)
    except (UsageError, ValueError) as error:
        return [f"{folder}: cannot be loaded: {error}"]
    expected = {
        "vocab_size": tokenizer.vocab_size,
        "all_special_ids": list(tokenizer.all_special_ids),
        "control_ids": sorted(tokenizer.control_ids),
    }
    defects = [
        f"{folder}: has the {name} {value}, the manifest specifies {recorded[name]}"
        for name, value in expected.items()
        if recorded[name] != value
    ]
    for name in SPECIAL_NAMES:
        token_id, recorded_id = tokenizer.special_token_ids[name], recorded["special_token_ids"][name]
        allowed_ids = (token_id,)
        if name == "pad" and token_id is None:  # rows are padded with eos, or 0 without it
            eos = tokenizer.special_token_ids["eos"]
            allowed_ids = (0 if eos is None else eos,)
        if recorded_id not in allowed_ids:
            defects.append(
                f"{folder}: its {name} token has the id {token_id}, the manifest specifies {recorded_id}"
            )
    return defects
