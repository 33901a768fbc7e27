"""The files of a tokenizer's folder: local, remote, or on the hub."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from beam_pipeline.support import filesystem
from beam_pipeline.support.amounts import human_bytes
from beam_pipeline.support.errors import UsageError
from tokenmill_reader.format import json_text

JSON, CONFIG, MAP, ADDED, MODEL_CONFIG = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
TEKKEN = "tekken.json"

_REMEDY = "to make a tokenizer from your text, use train-tokenizer"
_SUFFIXES = (".json", ".txt", ".model", ".jinja")

# A vocabulary of 250,000 tokens takes 10 to 35 MB. Larger files of other names, such as a corpus, are no part of it.
_MAX_FILE_BYTES = 256 << 20
_GIT_LFS = b"version https://git-lfs.github.com/spec/"
_NAMES = (JSON, CONFIG, MAP, ADDED, MODEL_CONFIG, TEKKEN, "vocab.json", "vocab.txt", "merges.txt")


def find_files(path: str) -> dict[str, bytes]:
    """Reads the files of a tokenizer from a folder, or from the hub if there is no folder.

    Returns:
        The content of one or more files by name.

    Raises:
        UsageError: If there are no files, or one is too large.
    """
    files = read_folder(filesystem.absolute(path))
    if files:
        return files
    if Path(path).is_dir():
        raise UsageError(
            f"--tokenizer {path}: this folder contains no tokenizer files{_tiktoken_remedy(path)}"
        )
    return _download(path)


def read_folder(path: str) -> dict[str, bytes]:
    """Reads the files of a tokenizer's folder, but not weights and the like.

    Raises:
        UsageError: If one of them is too large, is no regular file of the folder, or was not downloaded.
    """
    files = {}
    for file, size in filesystem.list_files(path, recursive=False):
        name = file.rpartition("/")[2]
        if not name.endswith(_SUFFIXES):
            continue
        if filesystem.is_local(path):
            _check_place(Path(file), path)
        if size <= _MAX_FILE_BYTES:
            files[name] = _content(filesystem.read_bytes(file), name, path)
        elif name in _NAMES or name.endswith(".model"):
            raise UsageError(
                f"--tokenizer {path}: {name} has {human_bytes(size)}, and a tokenizer's file may have at most "
                f"{human_bytes(_MAX_FILE_BYTES)}; check that it is a tokenizer, and reduce its vocabulary"
            )
    return files


def _check_place(file: Path, path: str) -> None:
    """Refuses files whose content is not the folder's own, since everybody who gets the dataset gets a copy.

    A link of a downloaded folder could lead to any file that this user can read. In the hub's cache, files are links
    to the repository's own blobs: `models--NAME/snapshots/REVISION/tokenizer.json` to `models--NAME/blobs/HASH`.
    """
    folder, target = file.parent.resolve(), Path(os.path.realpath(file))  # `resolve` fails on a loop of links
    in_cache = folder.parent.name == "snapshots" and target.parent == folder.parent.with_name("blobs")
    if not (target.is_relative_to(folder) or in_cache):
        raise UsageError(
            f"--tokenizer {path}: {file.name} is a link to {target}, outside this folder, and would be copied to the "
            "dataset; replace it by the file, or delete it"
        )
    if not target.is_file():
        kind = "is no regular file" if target.exists() else f"is a link to {target}, which does not exist"
        raise UsageError(f"--tokenizer {path}: {file.name} {kind}; replace it by the file, or delete it")


def _content(data: bytes, name: str, path: str) -> bytes:
    if data.startswith(_GIT_LFS):
        raise UsageError(
            f"--tokenizer {path}: {name} is a Git LFS pointer instead of the file; run `git lfs install` and "
            "`git lfs pull` in this folder, or download the file"
        )
    # AutoTokenizer and `tokenizers` fail on a byte-order mark.
    return data.removeprefix(codecs.BOM_UTF8) if name.endswith(".json") else data


def _tiktoken_remedy(path: str) -> str:
    """Returns advice for a folder that has only tiktoken's ranks, without pattern and special tokens."""
    name = next((file.name for file in sorted(Path(path).glob("*.tiktoken"))), None)
    if name is None:
        return ""
    return (
        f", and {name} alone does not define a tokenizer; convert its encoding with "
        "transformers.integrations.tiktoken.convert_tiktoken_to_fast"
    )


def _download(name: str) -> dict[str, bytes]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            name, allow_patterns=[f"*{suffix}" for suffix in _SUFFIXES], ignore_patterns="*/*"
        )
    except HFValidationError as error:  # a path, not the name of a repository
        raise UsageError(f"--tokenizer {name}: no such folder; {_REMEDY}") from error
    except Exception as error:  # the client's own, or one of its network library
        raise UsageError(
            f"--tokenizer {name}: neither a folder with a tokenizer nor a repository on the hub "
            f"({first_line(error)}); {_REMEDY}"
        ) from error
    files = read_folder(folder)
    if not files:
        raise UsageError(f"--tokenizer {name}: this repository on the hub contains no tokenizer files")
    return files


def parse_json(files: Mapping[str, bytes], name: str, path: str) -> dict[str, Any]:
    """Returns the JSON object in one of the folder's files, or an empty one if the file is missing.

    Raises:
        UsageError: If the file contains anything else.
    """
    try:
        value = json_text.parse_json(files.get(name, b"{}").decode())  # AutoTokenizer reads no other encoding
        json.dumps(value, ensure_ascii=False).encode()  # nor could it save lone surrogates
    except ValueError as error:
        raise UsageError(f"--tokenizer {path}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"--tokenizer {path}: {name} does not contain a JSON object")
    return value


def dump_json(value: Mapping) -> bytes:
    """Returns the content of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def first_line(error: Exception) -> str:
    """Returns an error's message without the lines after its first one."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 300 else lines[0][:300] + "…"
