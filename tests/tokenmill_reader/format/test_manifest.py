"""Parsing manifests in pieces or as a whole: the same content, and nothing that readers may interpret differently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenmill_reader import DatasetError
from tokenmill_reader.format.manifest import (
    ShardList,
    checksum_defect,
    checksum_of,
    parse_manifest,
    with_checksum,
)
from tokenmill_reader.format.manifest_form import form_defects, rows_defects

SHARDS = [
    {
        "name": f"train-{number:05d}-{number + 1}.tfrecord",
        "records": number + 1,
        "bytes": 100,
        "crc32c": f"{number:08x}",
        "rows_checksum": f"{2**64 - 1 - number:016x}",
    }
    for number in range(20_000)  # several pieces
]
MANIFEST = {
    "format": "tokenmill-dataset",
    "version": 3,
    "split": "train",
    "splits": ["train"],
    "max_length": 8,
    "features": ["input_ids"],
    "num_records": sum(shard["records"] for shard in SHARDS),
    "shards": SHARDS,
    "fingerprint": "f" * 64,
    "tokenizer": {"path": "../tokenizer", "sha256": "0" * 64, "vocab_size": 9},
}
WRITTEN = with_checksum(MANIFEST)


@pytest.mark.parametrize(
    "data", [WRITTEN, json.dumps(MANIFEST).encode(), json.dumps(MANIFEST, indent=2).encode()]
)
def test_the_shards_are_those_in_the_manifest_however_it_is_formatted(data: bytes) -> None:
    manifest = parse_manifest(data, "manifest.json")
    assert isinstance(manifest["shards"], ShardList)
    assert [*manifest["shards"]] == SHARDS
    assert manifest["shards"][-2:] == SHARDS[-2:]
    assert {key: value for key, value in manifest.items() if key not in ("shards", "checksum")} == {
        key: value for key, value in MANIFEST.items() if key != "shards"
    }
    assert list(rows_defects(manifest)) == []


@pytest.mark.parametrize(
    "repeated_key", ['"bytes": 1, "bytes": 100', '"bytes" : 1, "bytes": 100', '"n": {"a": 1, "a": 1}']
)
def test_a_key_that_occurs_twice_is_refused(repeated_key: str) -> None:
    data = WRITTEN.replace(b'"bytes": 100', repeated_key.encode(), 1)
    with pytest.raises(DatasetError, match="occurs twice"):
        parse_manifest(data, "manifest.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crc32c": "0000000G"}, "shards[7].crc32c is '0000000G', not text"),
        ({"crc32c": " 0000000"}, "shards[7].crc32c is ' 0000000', not text"),
        ({"crc32c": "000000000"}, "shards[7].crc32c is '000000000', not text"),
        ({"offsets_crc32c": "00000000"}, "only 1 of the 20000 shards have the key offsets_crc32c"),
        ({"records": True}, "shards[7].records is True, not a whole number"),
        ({"bytes": 2**53}, "shards[7].bytes is 9007199254740992, not a whole number"),
        ({"bytes": 2**63}, "shards[7].bytes is 9223372036854775808, not a whole number"),
        ({"records": 0}, "shards[7].records is 0, not a whole number"),
        (
            {"name": "train-00008-9.tfrecord"},
            "shards[7] is named 'train-00008-9.tfrecord', not 'train-00007-8.tfrecord'",
        ),
    ],
)
def test_each_defect_of_a_shard_is_named(change: dict[str, Any], message: str) -> None:
    shards = [*SHARDS]
    shards[7] = shards[7] | change
    manifest = parse_manifest(with_checksum(MANIFEST | {"shards": shards}), "manifest.json")
    assert next(rows_defects(manifest)).startswith(message)


def test_a_second_line_of_the_checksum_is_a_defect() -> None:
    assert checksum_defect(WRITTEN, MANIFEST) is None
    line = next(line for line in WRITTEN.splitlines(keepends=True) if line.startswith(b'  "checksum"'))
    repeated_line = WRITTEN.replace(line, line * 2)
    assert checksum_of(repeated_line) == checksum_of(WRITTEN)
    assert "it was changed" in checksum_defect(repeated_line, MANIFEST)


@pytest.mark.parametrize("value", [[], {}, None, "csv"])
def test_an_output_format_of_another_form_is_a_defect(value: Any) -> None:
    manifest = parse_manifest(with_checksum(MANIFEST | {"output_format": value}), "manifest.json")
    for defects in (rows_defects(manifest), form_defects(manifest)):
        assert any(defect.startswith("output_format is ") for defect in defects)
