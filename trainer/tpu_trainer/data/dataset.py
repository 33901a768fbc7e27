"""Opens the splits to train on, and reads what is beside their shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tokenmill_reader import Dataset, DatasetError
from tpu_trainer.data.storage import UrlFolder
from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

_MAX_COUNT = 2**53


@contextmanager
def reading() -> Iterator[None]:
    """Context in which errors of the reader are UsageErrors with the same message."""
    try:
        yield
    except DatasetError as error:
        raise UsageError(str(error)) from error


def open_split(path: str) -> Dataset:
    """Opens the folder of a split and checks that it is complete. All records are compared with their checksums.

    Args:
        path: The folder, local or a URL.

    Raises:
        UsageError: If the folder does not exist or has no rows, the manifest has another format, or a shard is missing
            or differs from the manifest.
    """
    with reading():
        dataset = Dataset.open(UrlFolder(path) if files.is_url(path) else path, check=1, check_sizes=True)
    if not len(dataset):
        raise UsageError(f"{path}: the split has no rows; prepare it with more text, or with other --splits")
    if len(dataset) >= 2**31:
        raise UsageError(
            f"{path}: {len(dataset)} rows; a split can have at most 2**31 - 1: prepare several splits"
        )
    return dataset


def token_counts(dataset: Dataset) -> np.ndarray | None:
    """Returns the count of each token id, float64[vocab_size]; None if there is no statistics.json.

    Raises:
        UsageError: If it is damaged.
    """
    path = files.join(dataset.path, "statistics.json")
    with reading():
        data = dataset.read_file("statistics.json")
    if data is None:
        return None
    counts = _parse_json(data, path).get("token_counts")
    size = None if dataset.manifest is None else dataset.manifest["tokenizer"]["vocab_size"]
    if not isinstance(counts, list) or size not in (None, len(counts)) or not all(map(_is_count, counts)):
        raise UsageError(
            f"{path}: damaged: not the count of each token; copy it again, or remove it to train without it"
        )
    return np.array(counts, np.float64)


def input_files(dataset: Dataset, count: int) -> tuple[list[str], int]:
    """Returns the paths of the first `count` input files, none if the dataset does not list them, and their number."""
    inputs = (dataset.manifest or {}).get("inputs")
    if inputs is None:
        return [], 0
    if not isinstance(inputs, dict) or not _is_count(inputs.get("files")):
        raise UsageError(
            f"{dataset.path}/manifest.json: inputs has no number of files; copy or prepare the dataset again"
        )
    with reading():
        data = dataset.read_file("../inputs.jsonl")
    if data is None:  # the folder of the split was copied alone
        return [], inputs["files"]
    path = files.join(dataset.path, "../inputs.jsonl")
    lines = [line for line in data.split(b"\n", count)[:count] if line]
    return [str(_parse_json(line, path).get("path")) for line in lines], inputs["files"]


def _parse_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:  # broken JSON or broken UTF-8
        raise UsageError(
            f"{path}: invalid JSON ({error}); the file may be truncated: prepare the dataset again"
        ) from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{path}: not a JSON object; copy or prepare the dataset again")
    return parsed


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT
