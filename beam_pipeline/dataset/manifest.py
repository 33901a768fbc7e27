"""The manifest of a split (docs/dataset-format.md): writing, reading and checking it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c

from beam_pipeline.dataset.manifest_form import form_defects
from beam_pipeline.dataset.manifest_values import value_defects
from beam_pipeline.rows.routing import Layout
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.support.parsing import parse_own_json

FORMAT = "tokenmill-dataset"
VERSION = 3
MANIFEST = "manifest.json"
STATISTICS = "statistics.json"
UNITS = "units.jsonl"
SCHEMA = "transformed_metadata/schema.pbtxt"
INDEX = "index.json"  # with --output_format mds
TOKENIZER = "tokenizer"  # a folder beside those of the splits
TRANSFORM_FN = "transform_fn"
REPORT = "report.html"  # beside the folders of the splits

_CHECKSUM_LINE = re.compile(rb'^  "checksum": .*\n', re.MULTILINE)


def to_bytes(data: Mapping[str, Any]) -> bytes:
    """Encodes JSON with sorted keys, so equal content gives equal bytes. Lists of numbers stay on one line."""
    lines = [f"  {json.dumps(key)}: {_value(data[key])}" for key in sorted(data)]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join("    " + json.dumps(item, sort_keys=True) for item in value) + "\n  ]"
    return json.dumps(value, sort_keys=True)


def describe_file(path: str, data: bytes) -> dict[str, Any]:
    """Returns the entry of a file in the `files` of the manifest or of its tokenizer."""
    return {"path": path, "bytes": len(data), "crc32c": f"{google_crc32c.value(data):08x}"}


def fingerprint(bytes_version: int, config: Mapping, inputs: Mapping, tokenizer: Mapping) -> str:
    """Returns the fingerprint of a run. Runs with equal fingerprints write equal shards.

    Args:
        bytes_version: The version of the code that makes the shards.
        config: As in the manifest.
        inputs: As in the manifest.
        tokenizer: As in the manifest. Its list of files is ignored.
    """
    tokenizer = {key: value for key, value in tokenizer.items() if key != "files"}
    description = {"config": config, "inputs": inputs, "tokenizer": tokenizer}
    return hashlib.sha256(json.dumps([bytes_version, description], sort_keys=True).encode()).hexdigest()


def with_checksum(manifest: Mapping[str, Any]) -> bytes:
    """Returns the bytes of manifest.json: these keys and `checksum`."""
    checksum = checksum_of(to_bytes(manifest))
    return to_bytes({**manifest, "checksum": checksum})


def checksum_of(data: bytes) -> str:
    """Computes the `checksum` of a manifest from its bytes without the line of the checksum."""
    return hashlib.sha256(_CHECKSUM_LINE.sub(b"", data)).hexdigest()


def checksum_defect(data: bytes, manifest: Mapping[str, Any]) -> str | None:
    """Checks the checksum of a manifest that was parsed from `data`.

    Returns:
        The defect. None if the checksum is correct.
    """
    expected = checksum_of(data)
    line = f'  "checksum": "{expected}",\n'.encode()
    if _CHECKSUM_LINE.findall(data) == [line]:
        return None
    return (
        f"its checksum is {manifest.get('checksum')!r}, but that of its content is {expected}: it was changed after "
        "the dataset was finished"
    )


def finished_splits(dataset: str) -> list[str]:
    """Returns the names of the folders in a dataset's folder that have a manifest, sorted."""
    names = filesystem.list_subfolders(dataset)
    return [name for name in names if filesystem.exists(filesystem.join(dataset, name, MANIFEST))]


def no_dataset_reason(path: str) -> str:
    """Describes why a folder in which no split has a manifest is not a dataset."""
    if not (filesystem.list_subfolders(path) or filesystem.list_files(path, recursive=False)):
        return f"{path}: no such folder, or it is empty"
    return f"{path}: is not a finished dataset: no split in it has a {MANIFEST}"


def read_manifest(folder: str) -> dict[str, Any]:
    """Reads and checks the manifest of the split in `folder`.

    Raises:
        DataError: If there is none, its version cannot be read, its checksum or form is wrong, or its values contradict
            each other.
    """
    data, manifest = parse_manifest(folder)
    defect = (
        checksum_defect(data, manifest)
        or next(form_defects(manifest), None)
        or next(value_defects(manifest, layout_of(manifest)), None)
        or name_defect(folder, manifest)
    )
    if defect:
        raise DataError(f"{filesystem.join(folder, MANIFEST)}: {defect}; copy it again, or rerun prepare")
    return manifest


def name_defect(folder: str, manifest: Mapping[str, Any]) -> str | None:
    """Checks that a split has the name of its folder, to which other programs would else write its files.

    Returns:
        The defect; None if the names are equal.
    """
    name = folder.rstrip("/").rpartition("/")[2]
    return (
        None if name == manifest["split"] else f"contains the split {manifest['split']!r}; rename the folder"
    )


def parse_manifest(folder: str) -> tuple[bytes, dict[str, Any]]:
    """Reads the manifest in `folder`, without checking its checksum and form.

    Returns:
        Its bytes, and its content.

    Raises:
        DataError: If there is none, or its version cannot be read.
    """
    path = filesystem.join(folder, MANIFEST)
    if not filesystem.exists(path):
        raise DataError(f"{folder}: no {MANIFEST}, so this is not a finished dataset")
    data = filesystem.read_bytes(path)
    try:
        manifest = parse_own_json(data)
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a {FORMAT}")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise DataError(
            f"{path}: has version {version!r:.80} of the format; this program reads version {VERSION}"
        )
    return data, manifest


def output_format_of(manifest: Mapping[str, Any]) -> str:
    """Returns the format of the split's shards, as in `--output_format`. Manifests do not name tfrecord."""
    return manifest.get("output_format", "tfrecord")


def split_shares(manifest: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Returns the name and share of each split of the run, in their order."""
    return tuple((name, share) for name, share in manifest["config"]["splits"])


def layout_of(manifest: Mapping[str, Any]) -> Layout:
    """Returns the layout of the split's rows."""
    config = manifest["config"]
    return Layout(
        split=manifest["split"],
        num_rows=manifest["num_records"],
        shard_size=manifest["shard_size"],
        requested_shards=config["num_shards"],
        shuffle=config["shuffle"],
        seed=manifest["seed"],
    )


def schema_pbtxt(features: tuple[str, ...], max_length: int | None, vocab_size: int) -> bytes:
    """Returns a tensorflow_metadata schema of the records. Each feature is an int64 of a fixed shape.

    Without `max_length`, the records are documents of at least one token.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    largest = {"input_ids": vocab_size - 1, "attention_mask": 1}
    if max_length is not None:
        largest |= {"segment_ids": max_length, "position_ids": max_length - 1}
    schema = schema_pb2.Schema()
    for name in features:
        feature = schema.feature.add(name=name, type=schema_pb2.INT)
        feature.presence.min_fraction = 1.0
        if max_length is None:
            feature.value_count.min = 1
        else:
            feature.shape.dim.add(size=max_length)
        feature.int_domain.min = 0
        feature.int_domain.max = largest[name]
    return text_format.MessageToString(schema).encode()
