"""Parses manifest.json (docs/dataset-format.md). That of 200,000 shards has 40 MB, so its shards are kept as arrays."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_CHECKSUM_LINE = re.compile(rb'^  "checksum": .*\n', re.MULTILINE)
_BEFORE, _AFTER = b'\n  "shards": [\n', b"\n  ]"
_AT_ONCE = 1 << 20


@dataclass
class ShardList:
    """The shards in a manifest, in order."""

    names: list[str] = field(default_factory=list)
    records: array = field(default_factory=lambda: array("q"))
    sizes: array = field(default_factory=lambda: array("q"))
    """Bytes of each."""
    checksums: np.ndarray | None = None
    """CRC-32C of each, int64[shards]; None if the manifest has none."""
    offsets_checksums: np.ndarray | None = None
    """CRC-32C of each one's offsets, int64[shards]; None if the manifest has none."""


def parse_manifest(data: bytes) -> tuple[dict[str, Any], ShardList | None]:
    """Parses a manifest.

    Returns:
        The manifest without `shards`, and these; None if they have another form.

    Raises:
        ValueError, TypeError, OverflowError, AttributeError, RecursionError: If it is broken.
    """
    # `prepare` writes one line for each shard. Parsing these in pieces never has all of their dicts in memory.
    first = data.find(_BEFORE)
    end = data.find(_AFTER, first + len(_BEFORE))
    if first >= 0 and end >= 0:
        try:
            manifest = json.loads(data[:first] + b'\n  "shards": []' + data[end + len(_AFTER) :])
            return _without_shards(manifest), _collect(_pieces(data, first + len(_BEFORE), end))
        except ValueError:  # formatted by another program
            pass
    manifest = json.loads(data)
    shards = manifest.get("shards")
    collected = _collect([shards]) if isinstance(shards, list) else None
    return _without_shards(manifest), collected


def _without_shards(manifest: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in manifest.items() if key != "shards"}


def _pieces(data: bytes, first: int, end: int) -> Iterator[list[Any]]:
    """Yields the items of a list, which has an item on each line of data[first:end], in pieces of about 1 MiB."""
    while first < end:
        cut = data.find(b",\n", min(first + _AT_ONCE, end), end)
        cut = end if cut < 0 else cut
        yield json.loads(b"[" + data[first:cut] + b"]")
        first = cut + 2


def _collect(pieces: Iterator[list[Any]] | Sequence[list[Any]]) -> ShardList | None:
    shards = ShardList()
    hashes: dict[str, list[str]] = {"crc32c": [], "offsets_crc32c": []}
    for piece in pieces:
        if not {dict}.issuperset(map(type, piece)):
            return None
        try:
            shards.names.extend([shard["name"] for shard in piece])
            shards.records.extend([shard["records"] for shard in piece])
            shards.sizes.extend([shard["bytes"] for shard in piece])
        except KeyError:
            return None
        for key, values in hashes.items():
            values.append("".join([shard.get(key, "") for shard in piece]))
    shards.checksums, shards.offsets_checksums = (
        _from_hex("".join(values), len(shards.names)) for values in hashes.values()
    )
    return shards


def _from_hex(digits: str, count: int) -> np.ndarray | None:
    """Converts numbers of 8 hex digits each to int64[count]; None if some are missing."""
    if not digits or len(digits) != 8 * count:
        return None
    values = np.frombuffer(bytes.fromhex(digits), ">u4").astype(np.int64)
    if values.size != count:  # white space among the digits
        raise ValueError("a checksum is not 8 hex digits")
    return values


def checksum_of(data: bytes) -> str:
    """Returns the `checksum` of a manifest: the SHA-256 of its bytes without the line of the checksum."""
    line = _CHECKSUM_LINE.search(data)
    digest = hashlib.sha256()
    view = memoryview(data)
    for part in (view[: line.start()], view[line.end() :]) if line else (view,):
        digest.update(part)
    return digest.hexdigest()
