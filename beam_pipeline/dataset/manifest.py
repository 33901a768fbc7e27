"""What a finished dataset says of itself (docs/dataset-format.md), and reading it back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from beam_pipeline import filesystem
from beam_pipeline.errors import DataError

FORMAT = "tokenmill-dataset"
VERSION = 1
MANIFEST = "manifest.json"
STATISTICS = "statistics.json"
UNITS = "units.jsonl"
SCHEMA = "transformed_metadata/schema.pbtxt"
TRANSFORM_FN = "transform_fn"
REPORT = "report.html"  # in the dataset's folder, beside the splits'


def to_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys: the same bytes for the same content. Long lists of numbers stay on their line."""
    lines = [f"  {json.dumps(key)}: {_value(data[key])}" for key in sorted(data)]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join("    " + json.dumps(item, sort_keys=True) for item in value) + "\n  ]"
    return json.dumps(value, sort_keys=True)


def read_manifest(folder: str) -> dict[str, Any]:
    """The manifest of the split in `folder`.

    Raises:
      DataError: where there is none, or none that this version can read.
    """
    path = filesystem.join(folder, MANIFEST)
    if not filesystem.exists(path):
        raise DataError(f"{folder}: no {MANIFEST}, so this is no finished dataset")
    try:
        manifest = json.loads(filesystem.read_bytes(path))
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a {FORMAT}")
    if manifest.get("version") != VERSION:
        raise DataError(
            f"{path}: version {manifest.get('version')} of the format; this program reads version {VERSION}"
        )
    return manifest


def schema_pbtxt(features: tuple[str, ...], max_length: int, vocab_size: int) -> bytes:
    """A tensorflow_metadata schema of the records: each feature an int64 of a fixed shape."""
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    largest = {
        "input_ids": vocab_size - 1,
        "attention_mask": 1,
        "segment_ids": max_length,
        "position_ids": max_length - 1,
    }
    schema = schema_pb2.Schema()
    for name in features:
        feature = schema.feature.add(name=name, type=schema_pb2.INT)
        feature.presence.min_fraction = 1.0
        feature.shape.dim.add(size=max_length)
        feature.int_domain.min = 0
        feature.int_domain.max = largest[name]
    return text_format.MessageToString(schema).encode()
