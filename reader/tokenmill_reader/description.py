"""The content of a split's folder, from its manifest.json or the names of its shards (docs/dataset-format.md)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenmill_reader.errors import REMEDY, DatasetError
from tokenmill_reader.files import Folder, ListingEntry
from tokenmill_reader.format.manifest import ShardList, checksum_defect, output_format_of, parse_manifest
from tokenmill_reader.format.manifest_form import rows_defects
from tokenmill_reader.format.names import MANIFEST

_SHARD_NAME = re.compile(r"(?P<split>.+)-(?P<shard>\d{1,9})-(?P<count>\d{1,12})\.tfrecord")


@dataclass(frozen=True, kw_only=True)
class Description:
    """A split. Arrays have one element per shard."""

    folder: Folder
    split: str
    names: list[str] = field(repr=False)
    """The files of the shards."""
    records: np.ndarray = field(repr=False)
    """Records in each shard, int64[shards]."""
    sizes: np.ndarray | None = field(repr=False)
    """Bytes of each shard, int64[shards]; None without a manifest."""
    checksums: np.ndarray | None = field(repr=False)
    """CRC-32C of each shard, int64[shards]; None without a manifest."""
    offsets_checksums: np.ndarray | None = field(repr=False)
    """CRC-32C of each shard's offsets, int64[shards]; None if the manifest has none."""
    max_length: int | None
    """Tokens per row; None without a manifest."""
    features: tuple[str, ...] | None
    """The features of each record, sorted; None without a manifest."""
    fingerprint: str | None = field(repr=False)
    """Identifies the rows and their order; None without a manifest."""
    manifest: dict[str, Any] | None = field(repr=False)
    """Without `shards`; None if there is no manifest."""


def describe(folder: Folder, *, check_sizes: bool = False) -> Description:
    """Describes a split and checks that none of its shards is missing.

    Args:
        folder: The split's folder.
        check_sizes: Whether to compare the sizes of all shards, even if that takes a call for each.

    Raises:
        DatasetError: If the folder has no split, the manifest is damaged or of another version, or a listed size or
            checksum differs.
    """
    data = folder.read(MANIFEST)
    listed = folder.list_files(sizes=check_sizes)
    if data is None:
        return _from_names(folder, listed)
    return _from_manifest(folder, listed, data, f"{folder.path}/{MANIFEST}")


def check_size(path: str, size: int, *, records: int, expected: int | None) -> None:
    """Checks the size of a shard's file.

    Args:
        path: The file's path, for the message.
        size: Its bytes.
        records: The number of records in it.
        expected: The bytes that the manifest specifies; None without one.

    Raises:
        DatasetError: If it is wrong.
    """
    if expected is not None and size != expected:
        raise DatasetError(f"{path}: {size} bytes, but the manifest specifies {expected}; {REMEDY}")
    # A frame has at least 16 bytes. So a name cannot make a reader reserve more memory than the file has.
    if records * 16 > size:
        raise DatasetError(
            f"{path}: {size} bytes are too few for the {records} records that its name or the manifest specifies; "
            f"{REMEDY}"
        )


def _from_manifest(folder: Folder, listed: Mapping[str, ListingEntry], data: bytes, path: str) -> Description:
    manifest = parse_manifest(data, path)
    defect = checksum_defect(data, manifest)
    if defect is None and output_format_of(manifest) != "tfrecord":
        raise DatasetError(
            f"{path}: its shards are {str(manifest['output_format'])[:80]} files; this reader reads TFRecords: copy "
            "the dataset by tokenmill convert … --output_format tfrecord, or prepare it again"
        )
    defect = defect or next(rows_defects(manifest), None)
    if defect:
        raise DatasetError(f"{path}: {defect}; {REMEDY}")
    shards, split = manifest.pop("shards"), manifest["split"]
    _check_presence(folder, listed, shards, path)
    return Description(
        folder=folder,
        split=split,
        names=shards.names,
        records=np.array(shards.records, np.int64),
        sizes=np.array(shards.sizes, np.int64),
        checksums=shards.checksums,
        offsets_checksums=shards.offsets_checksums,
        max_length=manifest["max_length"],
        features=tuple(sorted(manifest["features"])),
        fingerprint=f"{manifest['fingerprint']}/{split}",
        manifest=manifest,
    )


def _check_presence(folder: Folder, listed: Mapping[str, ListingEntry], shards: ShardList, path: str) -> None:
    if not listed.keys() >= set(shards.names):
        missing = [name for name in shards.names if name not in listed]
        raise DatasetError(
            f"{folder.path}/{missing[0]}: listed in {path} but missing, as are {len(missing) - 1} others; {REMEDY}"
        )
    for shard, name in enumerate(shards.names):
        size, crc = listed[name]
        if size is not None:
            check_size(
                f"{folder.path}/{name}", size, records=shards.records[shard], expected=shards.sizes[shard]
            )
        if crc is not None and shards.checksums is not None and crc != shards.checksums[shard]:
            raise DatasetError(
                f"{folder.path}/{name}: its CRC-32C is {crc:08x}, but the manifest specifies "
                f"{shards.checksums[shard]:08x}; {REMEDY}"
            )


def _from_names(folder: Folder, listed: Mapping[str, ListingEntry]) -> Description:
    matches = [match for match in map(_SHARD_NAME.fullmatch, sorted(listed)) if match]
    if not matches:
        raise DatasetError(
            f"{folder.path}: contains neither {MANIFEST} nor files named <split>-<shard>-<records>.tfrecord; give the "
            "folder of a split, such as OUT/train"
        )
    splits = sorted({match["split"] for match in matches})
    if len(splits) > 1:
        raise DatasetError(
            f"{folder.path}: contains shards of several splits ({', '.join(splits[:8])}); move each split to its own "
            "folder"
        )
    matches.sort(key=lambda match: int(match["shard"]))
    for shard, match in enumerate(matches):
        if int(match["shard"]) != shard:
            raise DatasetError(
                f"{folder.path}/{match[0]}: found where shard {shard} is expected; a shard is missing or there twice; "
                f"{REMEDY}"
            )
        size = listed[match[0]].size
        if size is not None:
            check_size(f"{folder.path}/{match[0]}", size, records=int(match["count"]), expected=None)
    names = [match[0] for match in matches]
    return Description(
        folder=folder,
        split=splits[0],
        names=names,
        records=np.array([int(match["count"]) for match in matches], np.int64),
        sizes=None,
        checksums=None,
        offsets_checksums=None,
        max_length=None,
        features=None,
        fingerprint=None,
        manifest=None,
    )


def tokenizer_path(description: Description) -> str | None:
    """Returns the folder of the split's tokenizer; None if there is none.

    Raises:
        DatasetError: If its tokenizer.json is not the one that the dataset was prepared with.
    """
    folder, tokenizer_entry = description.folder, (description.manifest or {}).get("tokenizer", {})
    data = folder.read("../tokenizer/tokenizer.json")
    if data is None:
        # Without a manifest, it may be a tokenizer of Python code.
        tokenizer_config = None if tokenizer_entry else folder.read("../tokenizer/tokenizer_config.json")
        return None if tokenizer_config is None else folder.join("../tokenizer")
    actual = hashlib.sha256(data).hexdigest()
    if tokenizer_entry.get("sha256", actual) != actual:
        raise DatasetError(
            f"{folder.path}/../tokenizer/tokenizer.json: not the tokenizer that the dataset was prepared with: its "
            f"SHA-256 is {actual}, not {tokenizer_entry['sha256']}; {REMEDY}"
        )
    return folder.join("../tokenizer")
