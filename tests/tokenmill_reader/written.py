"""Writes small splits, record by record, as any writer of `tf.train.Example`s may."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np


def varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def int64_feature(name: str, values: Sequence[int], *, packed: bool = True) -> bytes:
    """One entry of an Example's map."""
    if packed:
        content = field(1, b"".join(map(varint, values)))
    else:
        content = b"".join(b"\x08" + varint(value) for value in values)
    return field(1, field(1, name.encode()) + field(2, field(3, content)))


def example(features: Mapping[str, Sequence[int]], *, packed: bool = True) -> bytes:
    return field(
        1, b"".join(int64_feature(name, list(values), packed=packed) for name, values in features.items())
    )


def masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def random_rows(count: int, length: int = 12, *, seed: int = 0, largest: int = 60_000) -> np.ndarray:
    """int64[count, length], with values of one, two and three bytes."""
    random = np.random.default_rng(seed)
    return np.exp(random.uniform(0, np.log(largest), (count, length))).astype(np.int64)


def write_shards(folder: Path, shards: Sequence[Sequence[bytes]]) -> list[Path]:
    """Writes files of these records, named as shards of the split that the folder is named after."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, records in enumerate(shards):
        path = folder / f"{folder.name}-{number:05d}-{len(records)}.tfrecord"
        path.write_bytes(b"".join(map(frame, records)))
        paths.append(path)
    return paths


def offsets_of(shard: Path) -> Path:
    """The path of a shard's offsets."""
    return shard.parent / "offsets" / f"{shard.stem}.offsets"


def write_offsets(shard: Path) -> None:
    """Writes the offsets of the records in a shard."""
    data, offsets = shard.read_bytes(), [0]
    while offsets[-1] < len(data):
        offsets.append(offsets[-1] + 16 + int.from_bytes(data[offsets[-1] : offsets[-1] + 8], "little"))
    offsets_of(shard).parent.mkdir(exist_ok=True)
    np.array(offsets, "<u8").tofile(offsets_of(shard))


def write_split(
    folder: Path,
    features: Mapping[str, np.ndarray],
    *,
    shard_rows: int | Sequence[int] = 10,
    manifest: bool = True,
    offsets: bool = True,
    vocab_size: int = 2**31,
) -> Path:
    """Writes a split: with manifest and offsets if wanted, else shards alone."""
    count, length = features["input_ids"].shape
    sizes = (
        shard_rows
        if not isinstance(shard_rows, int)
        else [shard_rows] * (count // shard_rows) + ([count % shard_rows] if count % shard_rows else [])
    )
    shard_ends = np.cumsum(sizes)
    records = [
        example({name: values[row].tolist() for name, values in features.items()}) for row in range(count)
    ]
    paths = write_shards(
        folder, [records[end - size : end] for size, end in zip(sizes, shard_ends, strict=True)]
    )
    if manifest:
        if offsets:
            for path in paths:
                write_offsets(path)
        manifest_keys = describe(folder, paths, sorted(features), length)
        manifest_keys["tokenizer"]["vocab_size"] = vocab_size
        write_manifest(folder, manifest_keys)
    return folder


def describe(folder: Path, paths: Sequence[Path], features: list[str], length: int) -> dict[str, Any]:
    shards = [
        {
            "name": path.name,
            "records": int(path.stem.rpartition("-")[2]),
            "bytes": path.stat().st_size,
            "crc32c": f"{google_crc32c.value(path.read_bytes()):08x}",
            **(
                {"offsets_crc32c": f"{google_crc32c.value(offsets_of(path).read_bytes()):08x}"}
                if offsets_of(path).exists()
                else {}
            ),
        }
        for path in paths
    ]
    return {
        "format": "tokenmill-dataset",
        "version": 3,
        "split": folder.name,
        "splits": [folder.name],
        "max_length": length,
        "features": features,
        "num_records": sum(shard["records"] for shard in shards),
        "shards": shards,
        "fingerprint": "f" * 64,
        "tokenizer": {"path": "../tokenizer", "sha256": "0" * 64, "vocab_size": 2**31},
    }


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes manifest.json with the right checksum, with a line for each shard, as `prepare` does."""

    def text_of(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
        return json.dumps(value)

    lines = [f"  {json.dumps(key)}: {text_of(manifest[key])}" for key in sorted(manifest)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    checksum = hashlib.sha256(text.encode()).hexdigest()
    lines = sorted([*lines, f'  "checksum": "{checksum}"'])
    (folder / "manifest.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
