"""The manifest of a split: parsing and writing its bytes. `manifest_form.py` checks its content.

A manifest of 200,000 shards has 40 MB, so the shards are parsed in pieces and kept as arrays.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np

from tokenmill_reader.errors import REMEDY, DatasetError
from tokenmill_reader.format.json_text import json_bytes, parse_own_json, parse_own_list

FORMAT = "tokenmill-dataset"
VERSION = 3

_CHECKSUM_LINE = re.compile(rb'\n  "checksum": .*(?=\n)')  # begins with text, since `^` would be slow
_SHARDS_START, _SHARDS_END = b'\n  "shards": [\n', b"\n  ]"
_PIECE_BYTES = 1 << 20
_HEX_DIGITS = {"crc32c": 8, "rows_checksum": 16, "offsets_crc32c": 8, "index_crc32c": 8}


class ShardList(Sequence[dict[str, Any]]):
    """The shards of a manifest, in order: arrays with a value for each shard, and the sequence of their entries."""

    def __init__(
        self, names: list[str], records: array, sizes: array, checksums: Mapping[str, np.ndarray]
    ) -> None:
        self.names = names
        self.records = records
        self.sizes = sizes
        """The size of each shard in bytes."""
        self.sums = checksums
        """The checksums that the entries have, by their keys, uint64[shards]."""

    @property
    def checksums(self) -> np.ndarray | None:
        """The CRC-32C of each, int64[shards]; None if the manifest has none."""
        return self._as_int64("crc32c")

    @property
    def offsets_checksums(self) -> np.ndarray | None:
        """The CRC-32C of each one's offsets, int64[shards]; None if the manifest has none."""
        return self._as_int64("offsets_crc32c")

    def _as_int64(self, key: str) -> np.ndarray | None:
        return self.sums[key].astype(np.int64) if key in self.sums else None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        """Returns the entry of a shard, or a list of several ones."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        entry = {"name": self.names[index], "records": self.records[index], "bytes": self.sizes[index]}
        return entry | {
            key: f"{int(values[index]):0{_HEX_DIGITS[key]}x}" for key, values in self.sums.items()
        }


def parse_manifest(data: bytes, path: str) -> dict[str, Any]:
    """Parses a manifest.

    Args:
        data: The bytes of manifest.json.
        path: Its path, for messages.

    Returns:
        Its content. `shards` is a `ShardList` if each is an object with a name, a number of records and a size, and
        either all or none have each checksum. Otherwise it is the value in the manifest.

    Raises:
        DatasetError: If it is not JSON, or not of this version.
    """
    try:
        manifest = _parse(data)
    except ValueError as error:
        raise DatasetError(
            f"{path}: broken JSON ({str(error)[:200]}); it may be truncated: {REMEDY}"
        ) from error
    declared = (
        (manifest.get("format"), manifest.get("version")) if isinstance(manifest, dict) else (None, None)
    )
    if declared[0] != FORMAT or type(declared[1]) is not int or declared[1] != VERSION:
        raise DatasetError(
            f"{path}: format and version are {declared[0]!r:.80} and {declared[1]!r:.80}; this program supports "
            f"{FORMAT!r}, {VERSION}; prepare the dataset again, or install a newer release"
        )
    return manifest


def _parse(data: bytes) -> Any:
    # `prepare` writes one line for each shard. Parsing these in pieces never has all of their dicts in memory.
    start = data.find(_SHARDS_START)
    end = data.find(_SHARDS_END, start + len(_SHARDS_START))
    if start >= 0 and end >= 0:
        try:
            manifest = parse_own_json(data[:start] + b'\n  "shards": []' + data[end + len(_SHARDS_END) :])
            shards = _collect(_pieces(data, start + len(_SHARDS_START), end))
            if shards is not None and manifest.get("shards") == []:
                return manifest | {"shards": shards}
        except ValueError:  # formatted by another program
            pass
    manifest = parse_own_json(data)
    shards = manifest.get("shards") if isinstance(manifest, dict) else None
    collected = _collect([shards]) if isinstance(shards, list) else None
    return manifest if collected is None else manifest | {"shards": collected}


def _pieces(data: bytes, start: int, end: int) -> Iterator[list[Any]]:
    """Yields the items of a list, which has an item on each line of data[first:end], in pieces of about 1 MiB."""
    while start < end:
        piece_end = data.find(b",\n", min(start + _PIECE_BYTES, end), end)
        piece_end = end if piece_end < 0 else piece_end
        yield parse_own_list(b"[" + data[start:piece_end] + b"]")
        start = piece_end + 2


def _collect(pieces: Iterable[list[Any]]) -> ShardList | None:
    """Collects the entries of shards. Returns None if they have another form than `parse_manifest` describes."""
    names: list[str] = []
    numbers = {"records": array("q"), "bytes": array("q")}
    sums: dict[str, list[np.ndarray]] = {key: [] for key in _HEX_DIGITS}
    for piece in pieces:
        if not {dict}.issuperset(map(type, piece)):
            return None
        try:
            names.extend([shard["name"] for shard in piece])
            for key, values in numbers.items():
                column = [shard[key] for shard in piece]
                if not {int}.issuperset(map(type, column)):
                    return None
                values.extend(column)
            for key, parts in sums.items():
                parts.append(_from_hex([shard[key] for shard in piece if key in shard], _HEX_DIGITS[key]))
        except (KeyError, OverflowError, ValueError):
            return None
    checksums = {key: np.concatenate(parts) for key, parts in sums.items() if any(map(len, parts))}
    if not {str}.issuperset(map(type, names)) or any(
        len(values) != len(names) for values in checksums.values()
    ):
        return None
    return ShardList(names, numbers["records"], numbers["bytes"], checksums)


def _from_hex(texts: list[Any], digits: int) -> np.ndarray:
    """Converts numbers of `digits` lower-case hex digits to uint64[numbers].

    Raises:
        ValueError: If one has another form.
    """
    joined = "".join(texts) if {str}.issuperset(map(type, texts)) else "not text"
    if joined.encode().translate(None, b"0123456789abcdef") or not {digits}.issuperset(map(len, texts)):
        raise ValueError(f"not {digits} hex digits each")
    return np.frombuffer(bytes.fromhex(joined), f">u{digits // 2}").astype(np.uint64)


def describe_file(path: str, data: bytes) -> dict[str, Any]:
    """Returns the entry of a file in the `files` of the manifest or of its tokenizer."""
    return {"path": path, "bytes": len(data), "crc32c": f"{google_crc32c.value(data):08x}"}


def fingerprint_of(bytes_version: int, config: Mapping, inputs: Mapping, tokenizer: Mapping) -> str:
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
    checksum = checksum_of(json_bytes(manifest))
    return json_bytes({**manifest, "checksum": checksum})


def checksum_of(data: bytes) -> str:
    """Computes the `checksum` of a manifest from its bytes without the line of the checksum."""
    digest, end = hashlib.sha256(), 0
    for line in _CHECKSUM_LINE.finditer(data):
        digest.update(memoryview(data)[end : line.start()])
        end = line.end()
    digest.update(memoryview(data)[end:])
    return digest.hexdigest()


def checksum_defect(data: bytes, manifest: Mapping[str, Any]) -> str | None:
    """Checks the checksum of a manifest that was parsed from `data`.

    Returns:
        The defect. None if the checksum is correct.
    """
    expected = checksum_of(data)
    line = f'\n  "checksum": "{expected}",'.encode()
    if _CHECKSUM_LINE.findall(data) == [line]:
        return None
    return (
        f"its checksum is {manifest.get('checksum')!r:.80}, but that of its content is {expected}: it was changed "
        "after the dataset was prepared"
    )


def output_format_of(manifest: Mapping[str, Any]) -> str:
    """Returns the format of the split's shards, as in `--output_format`. Manifests do not name tfrecord."""
    return manifest.get("output_format", "tfrecord")
