"""Opens dataset folders: shards with their row counts, with or without a manifest.

docs/dataset-format.md specifies the format. Local folders with a manifest are read without importing TensorFlow.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpu_trainer.support import files
from tpu_trainer.support.errors import UsageError

MANIFEST_FORMAT, MANIFEST_VERSIONS = "tokenmill-dataset", (2, 3)
_CHECKSUM_LINE = re.compile(rb'^  "checksum": .*\n', re.MULTILINE)
_SHARD_NAME = re.compile(r"^(?P<split>[^/]+)-(?P<shard>\d+)-(?P<count>\d+)\.tfrecord$")
_EVIDENCE = re.compile(r"/(sizes|crc32c|ends)=([0-9a-f]{16})(?=/|$)")
_MAX_COUNT = 2**53
_REMEDY = "copy or prepare the dataset again"
PLUS = " + "
"""Separates the fingerprints of a mixture's splits."""
# Features that a row may have besides input_ids.
OPTIONAL_FEATURES = ("attention_mask", "position_ids", "segment_ids")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A TFRecord file of `rows` rows."""

    path: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split of a dataset: a folder of shards."""

    path: str
    shards: tuple[Shard, ...]
    max_length: int
    """Tokens per row."""
    features: frozenset[str]
    """The feature names of each record."""
    tokenizer_path: str | None
    fingerprint: str
    """Identifies the rows: derived from the manifest's fingerprint, or, without a manifest, from the names and sizes of
    the shards and parts of their content. Compare it by `same_rows`."""
    manifest: dict[str, Any] | None
    """None if the folder has shards only."""

    @property
    def counts(self) -> np.ndarray:
        """Rows per shard, int64[shards]."""
        return np.array([shard.rows for shard in self.shards], dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Total number of rows."""
        return int(self.counts.sum())

    def statistics(self) -> dict[str, Any] | None:
        """Returns the content of statistics.json; None if there is no such file.

        Raises:
            UsageError: If it is damaged.
        """
        path = files.join(self.path, "statistics.json")
        if not files.is_file(path):
            return None
        statistics = _parse_json(files.read_bytes(path), path)
        counts, bigram = statistics.get("token_counts"), statistics.get("bigram_entropy", 0.0)
        size = None if self.manifest is None else self.manifest["tokenizer"]["vocab_size"]
        if not isinstance(counts, list) or size not in (None, len(counts)) or not all(map(_is_count, counts)):
            raise UsageError(
                f"{path}: damaged: not the count of each token; copy it again, or remove it to train without it"
            )
        if type(bigram) not in (int, float) or not 0 <= bigram < math.inf:
            raise UsageError(
                f"{path}: damaged: bigram_entropy is {bigram!r:.80}; copy it again, or remove it to train without it"
            )
        return statistics

    def token_counts(self) -> np.ndarray | None:
        """Returns the count of each token id, float64[vocab_size]; None if there is no statistics.json."""
        statistics = self.statistics()
        return None if statistics is None else np.array(statistics["token_counts"], dtype=np.float64)

    @property
    def num_inputs(self) -> int:
        """The number of input files; 0 if it is unknown."""
        inputs = (self.manifest or {}).get("inputs", [])
        return len(inputs) if isinstance(inputs, list) else inputs["files"]

    def input_paths(self, count: int) -> list[str]:
        """Returns the paths of the first `count` input files; none if the dataset does not list them."""
        inputs = (self.manifest or {}).get("inputs", [])
        if isinstance(inputs, list):  # up to version 2
            return [entry["path"] for entry in inputs[:count]]
        path = files.join(self.path, inputs["path"])
        if not files.is_file(path):  # the folder of the split was copied alone
            return []
        lines = files.read_bytes(path).split(b"\n", count)[:count]
        return [str(_parse_json(line, path).get("path")) for line in lines if line]


def open_split(path: str, *, tokenizer: str | None = None) -> Split:
    """Opens the folder of a split and checks that it is complete.

    Args:
        path: The folder, local or a URL.
        tokenizer: The tokenizer's folder, if it is not the dataset's own.

    Raises:
        UsageError: If the folder does not exist or has no rows, the manifest has another format, or a shard is missing
            or differs from the manifest.
    """
    if not files.is_dir(path):
        raise UsageError(f"{path}: no such folder; give the folder of a split, such as OUT/train")
    manifest_path = files.join(path, "manifest.json")
    if files.is_file(manifest_path):
        split = _from_manifest(path, _read_manifest(manifest_path), manifest_path, tokenizer)
    else:
        split = _from_names(path, tokenizer)
    if split.num_rows == 0:
        raise UsageError(f"{path}: the split has no rows; prepare it with more text, or with other --splits")
    if split.num_rows >= 2**31:
        raise UsageError(
            f"{path}: {split.num_rows} rows; a split can have at most 2**31 - 1: prepare several splits"
        )
    return split


def _parse_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:  # broken JSON or broken UTF-8
        raise UsageError(
            f"{path}: invalid JSON ({error}); the file may be truncated: prepare the dataset again"
        ) from error
    if not isinstance(parsed, dict):
        raise UsageError(f"{path}: not a JSON object; {_REMEDY}")
    return parsed


def _read_manifest(path: str) -> dict[str, Any]:
    """Reads a manifest and checks its format, version, checksum and form."""
    data = files.read_bytes(path)
    manifest = _parse_json(data, path)
    found = (manifest.get("format"), manifest.get("version"))
    if found[0] != MANIFEST_FORMAT or type(found[1]) is not int or found[1] not in MANIFEST_VERSIONS:
        raise UsageError(
            f"{path}: format and version are {found[0]!r:.80} and {found[1]!r:.80}; this trainer supports "
            f"{MANIFEST_FORMAT!r}, {' and '.join(map(str, MANIFEST_VERSIONS))}"
        )
    actual = hashlib.sha256(_CHECKSUM_LINE.sub(b"", data)).hexdigest()
    if manifest.get("checksum") != actual:
        raise UsageError(
            f"{path}: its checksum is {manifest.get('checksum')!r:.80}, but that of its content is {actual}: it was "
            "changed after the dataset was prepared; copy it or prepare the dataset again"
        )
    if manifest.get("output_format", "tfrecord") != "tfrecord":
        raise UsageError(
            f"{path}: its shards are {manifest['output_format']} files; this trainer reads TFRecords: copy the "
            "dataset by tokenmill convert … --output_format tfrecord, or prepare it again"
        )
    if (wrong := _wrong_form(manifest)) is not None:
        raise UsageError(f"{path}: {wrong}; {_REMEDY}")
    return manifest


def _wrong_form(manifest: dict[str, Any]) -> str | None:
    """Returns what is wrong with the values that the trainer uses; None if nothing is."""
    tokenizer, length, features = (manifest.get(key) for key in ("tokenizer", "max_length", "features"))
    if not all(isinstance(manifest.get(key), str) for key in ("split", "fingerprint")):
        return "split or fingerprint is not text"
    if not _is_count(length) or not 0 < length <= 2**24:
        return f"max_length is {length!r:.80}, not a length of rows"
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        return "features is not a list of names"
    if not isinstance(tokenizer, dict) or tokenizer.get("path") != "../tokenizer":
        return "tokenizer.path is not ../tokenizer"
    if not _is_count(tokenizer.get("vocab_size")) or not isinstance(tokenizer.get("sha256"), str):
        return "tokenizer has no vocab_size or sha256"
    if not isinstance(manifest.get("totals", {}), dict):
        return "totals is not an object"
    inputs, shards = manifest.get("inputs", []), manifest.get("shards")
    if isinstance(inputs, dict):
        if inputs.get("path") != "../inputs.jsonl" or not _is_count(inputs.get("files")):
            return "inputs has no path ../inputs.jsonl or number of files"
    elif not isinstance(inputs, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("path"), str) for entry in inputs
    ):
        return "inputs is not a list of files"
    if not isinstance(shards, list) or not all(map(_is_shard, shards)):
        return "shards is not a list of shards"
    return None


def _is_shard(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    return _SHARD_NAME.match(entry["name"]) is not None and all(
        _is_count(entry.get(key)) for key in ("records", "bytes")
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_COUNT


def _from_manifest(path: str, manifest: dict[str, Any], manifest_path: str, tokenizer: str | None) -> Split:
    listed = files.list_files(path)
    shards = []
    for entry in manifest["shards"]:
        shard_path = files.join(path, entry["name"])
        found = listed.get(entry["name"])
        remedy = "prepare or copy the dataset again"
        if found is None:
            raise UsageError(f"{shard_path}: listed in {manifest_path} but missing; {remedy}")
        if found.size != entry["bytes"]:
            raise UsageError(
                f"{shard_path}: {found.size} bytes, but {manifest_path} specifies {entry['bytes']}; {remedy}"
            )
        if found.crc32c is not None and "crc32c" in entry and found.crc32c != entry["crc32c"]:
            raise UsageError(
                f"{shard_path}: its CRC-32C is {found.crc32c}, but {manifest_path} specifies {entry['crc32c']}; "
                f"{remedy}"
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
    """Opens shards without a manifest: their names give the row counts, the first record gives the rest."""
    listed = files.list_files(path)
    matches = [match for match in map(_SHARD_NAME.match, sorted(listed)) if match]
    if not matches:
        raise UsageError(
            f"{path}: contains neither manifest.json nor files named <split>-<shard>-<count>.tfrecord; "
            "give the folder of a split, such as OUT/train"
        )
    splits = sorted({match["split"] for match in matches})
    if len(splits) > 1:
        raise UsageError(
            f"{path}: contains shards of several splits ({', '.join(splits)}); move each split to its own folder"
        )
    matches.sort(key=lambda match: int(match["shard"]))
    numbers = [int(match["shard"]) for match in matches]
    if numbers != list(range(len(numbers))):
        raise UsageError(
            f"{path}: the shard numbers are not 0 to {len(numbers) - 1}, each once; a shard is missing or duplicated"
        )
    for match in matches:
        if int(match["count"]) and not listed[match[0]].size:
            raise UsageError(
                f"{files.join(path, match[0])}: empty, but its name specifies {match['count']} rows"
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
        fingerprint=_shards_fingerprint(path, {match[0]: listed[match[0]] for match in matches}),
        manifest=None,
    )


def _shards_fingerprint(path: str, shards: Mapping[str, files.FileInfo]) -> str:
    """Returns the fingerprint of shards without a manifest, in their order.

    Of their content, it has the checksums that a listing gives, or the first and last bytes of each shard: the latter
    include the checksum of the last record.
    """
    parts = [",".join(shards), f"sizes={_digest([shard.size for shard in shards.values()])}"]
    checksums = [shard.crc32c for shard in shards.values()]
    if None not in checksums:
        parts.append(f"crc32c={_digest(checksums)}")
    elif not files.is_url(path):
        parts.append(f"ends={_digest([files.read_ends(files.join(path, name)).hex() for name in shards])}")
    return "/".join(parts)


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def same_rows(saved: str, current: str) -> bool:
    """Whether two fingerprints of splits or mixtures are of the same rows.

    Without a manifest, parts that only one of them has do not count: earlier releases saved only the names, and a
    bucket gives other checksums than a disk.
    """
    pairs = zip(_parsed(saved), _parsed(current), strict=False)
    return saved.count(PLUS) == current.count(PLUS) and all(
        ours[0] == theirs[0]
        and all(ours[1][key] == theirs[1][key] for key in ours[1].keys() & theirs[1].keys())
        for ours, theirs in pairs
    )


def _parsed(fingerprint: str) -> list[tuple[str, dict[str, str]]]:
    """Returns, for each split, what must be equal, and the parts that only some fingerprints have."""
    return [
        (_EVIDENCE.sub("", part), {match[1]: match[2] for match in _EVIDENCE.finditer(part)})
        for part in fingerprint.split(PLUS)
    ]


def _first_record(shard: Shard | None, path: str) -> tuple[int, frozenset[str]]:
    import tensorflow as tf  # imported here: folders with a manifest do not need it

    if shard is None:
        raise UsageError(f"{path}: the split has no rows; prepare it with more text, or with other --splits")
    record = next(iter(tf.data.TFRecordDataset(shard.path).take(1).as_numpy_iterator()), None)
    if record is None:
        raise UsageError(f"{shard.path}: empty, but its name specifies {shard.rows} rows")
    features = tf.train.Example.FromString(record).features.feature
    if "input_ids" not in features:
        raise UsageError(f"{shard.path}: its records have no input_ids, only {sorted(features)}")
    known = {"input_ids"} | (set(features) & set(OPTIONAL_FEATURES))
    return len(features["input_ids"].int64_list.value), frozenset(known)
