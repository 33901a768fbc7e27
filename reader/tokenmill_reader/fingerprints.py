"""Fingerprints of shards without a manifest, and the comparison of all fingerprints."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from tokenmill_reader.files import Folder

PLUS = " + "
"""Separates the fingerprints of a mixture's datasets."""
_EVIDENCE = re.compile(r"/(sizes|crc32c|ends)=([0-9a-f]{16})(?=/|$)")
_END_BYTES = 256


def fingerprint_of_shards(folder: Folder, names: Sequence[str]) -> str:
    """Returns the fingerprint of shards without a manifest.

    It covers the checksums that a listing gives or, for local files, the first and last bytes of each shard. The last
    bytes include the checksum of the last record.
    """
    listed = folder.list_files(sizes=True)
    sizes, checksums = [listed[name].size for name in names], [listed[name].crc32c for name in names]
    parts = [",".join(names), f"sizes={_digest(sizes)}"]
    if None not in checksums:
        parts.append(f"crc32c={_digest([f'{crc:08x}' for crc in checksums])}")
    elif folder.is_local:
        ends = [
            folder.read_ranges(
                name,
                [(0, min(size, _END_BYTES)), (max(_END_BYTES, size - _END_BYTES), max(_END_BYTES, size))],
            )
            for name, size in zip(names, sizes, strict=True)
        ]
        parts.append(f"ends={_digest([b''.join(first_and_last).hex() for first_and_last in ends])}")
    return "/".join(parts)


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def same_rows(saved: str, current: str) -> bool:
    """Whether two fingerprints of datasets or mixtures are of the same rows.

    Without a manifest, evidence that only one of them has does not count: a bucket gives other checksums than a disk.
    """
    pairs = zip(_parse(saved), _parse(current), strict=False)
    return saved.count(PLUS) == current.count(PLUS) and all(
        saved_part[0] == current_part[0]
        and all(
            saved_part[1][key] == current_part[1][key]
            for key in saved_part[1].keys() & current_part[1].keys()
        )
        for saved_part, current_part in pairs
    )


def _parse(fingerprint: str) -> list[tuple[str, dict[str, str]]]:
    """Returns, for each dataset, what must be equal, and the evidence."""
    return [
        (_EVIDENCE.sub("", part), {match[1]: match[2] for match in _EVIDENCE.finditer(part)})
        for part in fingerprint.split(PLUS)
    ]
