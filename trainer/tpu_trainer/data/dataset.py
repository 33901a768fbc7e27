"""What stands in a dataset folder: shards and their exact row counts, with or without a manifest.

The format is docs/dataset-format.md. Nothing here loads TensorFlow for a folder that has its manifest on a local disk.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_trainer import files
from tpu_trainer.errors import UsageError

MANIFEST_FORMAT, MANIFEST_VERSIONS = "tokenmill-dataset", (1, 2)
_CHECKSUM_LINE = re.compile(rb'^  "checksum": .*\n', re.MULTILINE)
_SHARD_NAME = re.compile(r"^(?P<split>.+)-(?P<shard>\d+)-(?P<count>\d+)\.tfrecord$")
# The optional features of a row; input_ids is always there.
OPTIONAL_FEATURES = ("attention_mask", "position_ids", "segment_ids")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file of `rows` rows."""

    path: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """A folder of rows of equal length: one split of a dataset.

    `features` are the names in each record. `fingerprint` identifies the rows: the manifest's, or, for bare shards,
    their names. `manifest` is None for bare shards.
    """

    path: str
    shards: tuple[Shard, ...]
    max_length: int
    features: frozenset[str]
    tokenizer_path: str | None
    fingerprint: str
    manifest: dict[str, Any] | None

    @property
    def counts(self) -> np.ndarray:
        """int64[shards]: the rows of each shard."""
        return np.array([shard.rows for shard in self.shards], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows in all shards."""
        return int(self.counts.sum())

    def statistics(self) -> dict[str, Any] | None:
        """What statistics.json says; None where the folder has none."""
        path = files.join(self.path, "statistics.json")
        return _read_json(path) if files.is_file(path) else None

    def token_counts(self) -> np.ndarray | None:
        """float64[vocab_size]: how often each id occurs; None where the folder has no statistics.json."""
        statistics = self.statistics()
        return None if statistics is None else np.array(statistics["token_counts"], dtype=np.float64)


def open_split(path: str, *, tokenizer: str | None = None) -> Split:
    """Opens a split's folder and checks that every shard is there.

    Args:
        path: The folder, local or a URL.
        tokenizer: The tokenizer's folder, where it is not the one the dataset brings.

    Raises:
        UsageError: No such folder, no rows in it, a manifest of another format, a shard missing or of another size.
    """
    if not files.is_dir(path):
        raise UsageError(f"{path}: no such folder; give the folder of one split, such as OUT/train")
    manifest_path = files.join(path, "manifest.json")
    if files.is_file(manifest_path):
        split = _from_manifest(path, _read_manifest(manifest_path), manifest_path, tokenizer)
    else:
        split = _from_names(path, tokenizer)
    if split.num_rows == 0:
        raise UsageError(f"{path}: the split holds no rows")
    if split.num_rows >= 2**31:
        raise UsageError(
            f"{path}: {split.num_rows} rows; a split may hold at most 2**31 - 1: make several splits"
        )
    return split


def _read_json(path: str) -> dict[str, Any]:
    return _parse_json(files.read_bytes(path), path)


def _parse_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        return json.loads(data)
    except ValueError as error:  # broken JSON or broken UTF-8
        raise UsageError(f"{path}: not JSON ({error}); was it cut off? Prepare the dataset again") from error


def _read_manifest(path: str) -> dict[str, Any]:
    """The manifest, after its format, its version and, from version 2 on, its checksum were checked."""
    data = files.read_bytes(path)
    manifest = _parse_json(data, path)
    found = (manifest.get("format"), manifest.get("version"))
    if found[0] != MANIFEST_FORMAT or found[1] not in MANIFEST_VERSIONS:
        raise UsageError(
            f"{path}: format and version are {found[0]!r} and {found[1]!r}; this trainer reads "
            f"{MANIFEST_FORMAT!r}, {' and '.join(map(str, MANIFEST_VERSIONS))}"
        )
    if found[1] >= 2:
        actual = hashlib.sha256(_CHECKSUM_LINE.sub(b"", data)).hexdigest()
        if manifest.get("checksum") != actual:
            raise UsageError(
                f"{path}: its checksum is {manifest.get('checksum')!r}, but its content has {actual}: it was changed "
                "after the dataset was prepared; copy it again, or prepare the dataset again"
            )
    return manifest


def _from_manifest(path: str, manifest: dict[str, Any], manifest_path: str, tokenizer: str | None) -> Split:
    listed = files.list_files(path)
    shards = []
    for entry in manifest["shards"]:
        shard_path = files.join(path, entry["name"])
        found = listed.get(entry["name"])
        remedy = "prepare or copy the dataset again"
        if found is None:
            raise UsageError(f"{shard_path}: named in {manifest_path} but missing; {remedy}")
        if found.size != entry["bytes"]:
            raise UsageError(
                f"{shard_path}: {found.size} bytes where {manifest_path} says {entry['bytes']}; {remedy}"
            )
        if found.crc32c is not None and "crc32c" in entry and found.crc32c != entry["crc32c"]:
            raise UsageError(
                f"{shard_path}: its CRC-32C is {found.crc32c} where {manifest_path} says {entry['crc32c']}; {remedy}"
            )
        shards.append(Shard(path=shard_path, rows=entry["records"]))
    return Split(
        path=path,
        shards=tuple(shards),
        max_length=manifest["max_length"],
        features=frozenset(manifest["features"]),
        tokenizer_path=tokenizer or files.join(path, manifest["tokenizer"]["path"]),
        fingerprint=f"{manifest['fingerprint']}/{manifest['split']}",
        manifest=manifest,
    )


def _from_names(path: str, tokenizer: str | None) -> Split:
    """Bare shards: the counts are in the names, the rest in the first record."""
    listed = files.list_files(path)
    matches = [match for match in map(_SHARD_NAME.match, sorted(listed)) if match]
    if not matches:
        raise UsageError(
            f"{path}: neither manifest.json nor a file named <split>-<shard>-<count>.tfrecord; "
            "give the folder of one split, such as OUT/train"
        )
    splits = sorted({match["split"] for match in matches})
    if len(splits) > 1:
        raise UsageError(
            f"{path}: shards of several splits ({', '.join(splits)}); give each split its own folder"
        )
    matches.sort(key=lambda match: int(match["shard"]))
    numbers = [int(match["shard"]) for match in matches]
    if numbers != list(range(len(numbers))):
        raise UsageError(
            f"{path}: the shards' numbers are not 0 to {len(numbers) - 1}, each once; a shard is missing or doubled"
        )
    for match in matches:
        if int(match["count"]) and not listed[match[0]].size:
            raise UsageError(
                f"{files.join(path, match[0])}: empty, though its name says {match['count']} rows"
            )
    shards = tuple(Shard(path=files.join(path, match[0]), rows=int(match["count"])) for match in matches)
    max_length, features = _first_record(next((shard for shard in shards if shard.rows), None), path)
    beside = files.join(path, "..", "tokenizer")
    return Split(
        path=path,
        shards=shards,
        max_length=max_length,
        features=features,
        tokenizer_path=tokenizer or (beside if files.is_dir(beside) else None),
        fingerprint=",".join(match[0] for match in matches),
        manifest=None,
    )


def _first_record(shard: Shard | None, path: str) -> tuple[int, frozenset[str]]:
    import tensorflow as tf  # only bare shards need it here

    if shard is None:
        raise UsageError(f"{path}: the split holds no rows")
    record = next(iter(tf.data.TFRecordDataset(shard.path).take(1).as_numpy_iterator()), None)
    if record is None:
        raise UsageError(f"{shard.path}: empty, though its name says {shard.rows} rows")
    features = tf.train.Example.FromString(record).features.feature
    if "input_ids" not in features:
        raise UsageError(f"{shard.path}: its records have no input_ids, only {sorted(features)}")
    known = {"input_ids"} | (set(features) & set(OPTIONAL_FEATURES))
    return len(features["input_ids"].int64_list.value), frozenset(known)
