"""The list of a dataset's input files: inputs.jsonl beside the folders of the splits (docs/dataset-format.md).

It can have many millions of lines, so the manifests have only its size and checksums.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import google_crc32c

from tokenmill_reader.errors import REMEDY, DatasetError
from tokenmill_reader.format.json_text import parse_own_json
from tokenmill_reader.format.names import INPUTS

_KEYS = {"path": str, "bytes": int}


def encode_inputs(files: Iterable[tuple[str, int]]) -> bytes:
    """Returns the content of inputs.jsonl, sorted, given the path and size of each file."""
    return "".join(json.dumps({"path": path, "bytes": size}) + "\n" for path, size in sorted(files)).encode()


def describe_inputs(data: bytes, *, files: int, input_bytes: int) -> dict[str, Any]:
    """Returns the manifest's `inputs`.

    Args:
        data: The content of inputs.jsonl.
        files: The number of input files.
        input_bytes: The size of all of them.
    """
    return {
        "path": f"../{INPUTS}",
        "files": files,
        "input_bytes": input_bytes,
        "bytes": len(data),
        "crc32c": f"{google_crc32c.value(data):08x}",
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def inputs_entry(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of inputs.jsonl as in a list of files."""
    inputs = manifest["inputs"]
    return {"path": INPUTS, "bytes": inputs["bytes"], "crc32c": inputs["crc32c"]}


def parse_inputs(data: bytes, path: str, manifest: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields the path and size of each input file, in order, and checks that the list is the manifest's.

    Args:
        data: The content of inputs.jsonl.
        path: Its path, for messages.
        manifest: The manifest of one of the dataset's splits.

    Raises:
        DatasetError: If the list is not what the manifest describes.
    """
    inputs = manifest["inputs"]
    actual = describe_inputs(data, files=inputs["files"], input_bytes=inputs["input_bytes"])
    for key in ("bytes", "crc32c", "sha256"):
        if actual[key] != inputs[key]:
            raise DatasetError(
                f"{path}: its {key} is {actual[key]}, but the manifest specifies {inputs[key]}; {REMEDY}"
            )
    previous_path, line_number, total = "", 0, 0
    for line_number, line in enumerate(io.BytesIO(data), 1):
        try:
            file = parse_own_json(line)
        except ValueError as error:
            raise DatasetError(f"{path}: line {line_number}: broken JSON ({error}); {REMEDY}") from error
        if not isinstance(file, dict) or {key: type(value) for key, value in file.items()} != _KEYS:
            raise DatasetError(f"{path}: line {line_number}: is not an object of a path and bytes; {REMEDY}")
        if file["path"] <= previous_path or file["bytes"] < 0:
            raise DatasetError(
                f"{path}: line {line_number}: its path is not after the one before, or its size is negative; {REMEDY}"
            )
        previous_path, total = file["path"], total + file["bytes"]
        yield file["path"], file["bytes"]
    if (line_number, total) != (inputs["files"], inputs["input_bytes"]):
        raise DatasetError(
            f"{path}: names {line_number} files of {total} bytes, but the manifest specifies {inputs['files']} of "
            f"{inputs['input_bytes']}; {REMEDY}"
        )
