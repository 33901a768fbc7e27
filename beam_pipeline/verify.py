"""The verb `verify`: is this dataset whole? Every defect is named."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import google_crc32c
import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.records import RecordError, decode_examples, read_frames
from beam_pipeline.dataset.shards import SHARD_NAME
from beam_pipeline.errors import DataError
from beam_pipeline.job import STAGING
from beam_pipeline.options import parse_verify
from beam_pipeline.rows.blocks import id_dtype, rows_checksum

_RECORDS_PER_DECODE = 2048
_SHARDS_AT_A_TIME = 8
_BYTES_FOR_ALL_CORES = 2 << 30  # below, starting other processes would take longer than the work


def main(argv: Sequence[str]) -> None:
    """Runs the verb: prints a line for each split, and one for each defect.

    Raises:
      DataError: where the dataset has defects, with their number.
    """
    dataset = filesystem.absolute(parse_verify(argv))
    defects = 0
    for folder, found in check_dataset(dataset):
        for defect in found:
            print(f"DEFECT {defect}", flush=True)
        defects += len(found)
        print(f"{folder}: {f'{len(found)} defects' if found else 'whole'}", flush=True)
    if defects:
        raise DataError(f"{dataset} has {defects} defects")


def check_dataset(dataset: str) -> Iterator[tuple[str, list[str]]]:
    """Checks a dataset's folder, or the folder of one of its splits.

    Yields:
      (a split's folder, its defects, a sentence each).
    """
    if filesystem.exists(filesystem.join(dataset, manifests.MANIFEST)):
        yield dataset, list(check_split(dataset))
        return
    found = filesystem.match(filesystem.join(dataset, "*", manifests.MANIFEST))
    folders = {path.rpartition("/")[0] for path, _ in found}
    if not folders:
        yield (
            dataset,
            [f"{dataset}: no split in it has a {manifests.MANIFEST}, so there is no finished dataset"],
        )
        return
    for folder in sorted(folders):  # a split that is missing altogether is known from its siblings
        try:
            siblings = manifests.read_manifest(folder)["splits"]
        except DataError:
            continue
        folders = folders | {filesystem.join(dataset, name) for name in siblings}
    for folder in sorted(folders):
        yield folder, list(check_split(folder))
    if filesystem.match(filesystem.join(dataset, STAGING, "**")):
        yield dataset, [f"{dataset}/{STAGING}: left behind by a run that did not end well; delete it"]


def check_split(folder: str) -> Iterator[str]:
    """The defects of one split."""
    try:
        manifest = manifests.read_manifest(folder)
    except DataError as error:
        yield str(error)
        return
    present = {path.rpartition("/")[2]: size for path, size in filesystem.match(filesystem.join(folder, "*"))}
    named = {shard["name"] for shard in manifest["shards"]}
    for name in sorted(present):
        if SHARD_NAME.fullmatch(name) and name not in named:
            yield f"{folder}/{name}: a shard that the manifest does not name; it is another run's: delete it"
    yield from _check_tokenizer(folder, manifest)
    yield from _check_schema(folder, manifest)
    counts = np.zeros(manifest["tokenizer"]["vocab_size"], np.int64)
    missing = [
        f"{folder}/{shard['name']}: missing" for shard in manifest["shards"] if shard["name"] not in present
    ]
    yield from missing
    whole = not missing
    for defects, part in _check_shards(
        folder, [s for s in manifest["shards"] if s["name"] in present], manifest
    ):
        yield from defects
        whole = whole and not defects
        counts += part
    checksum = sum(int(shard["rows_checksum"], 16) for shard in manifest["shards"])
    records = sum(shard["records"] for shard in manifest["shards"])
    if not whole:
        return  # sums over shards that are not whole say nothing more
    if records != manifest["num_records"]:
        yield f"{folder}: the shards' records add up to {records}, num_records is {manifest['num_records']}"
    if f"{checksum % 2**64:016x}" != manifest["rows_checksum"]:
        yield f"{folder}: the shards' row checksums do not add up to the manifest's"
    if int(counts.sum()) != manifest["totals"]["tokens"]:
        yield f"{folder}: {int(counts.sum())} tokens in the shards, {manifest['totals']['tokens']} in the manifest"
    yield from _check_statistics(folder, counts)


def _check_shards(
    folder: str, shards: Sequence[dict[str, Any]], manifest: dict[str, Any]
) -> Iterator[tuple[list[str], np.ndarray]]:
    """For some shards at a time, in order: their defects, and how often each id is attended to in them.

    Where there is much to check, all cores do it. What they are sent is small: not the manifest's list of shards.
    """
    needed = {name: manifest[name] for name in ("max_length", "features", "tokenizer")}
    groups = [shards[first : first + _SHARDS_AT_A_TIME] for first in range(0, len(shards), _SHARDS_AT_A_TIME)]
    check = partial(_check_group, folder, needed)
    if sum(shard["bytes"] for shard in shards) < _BYTES_FOR_ALL_CORES:
        yield from map(check, groups)
        return
    # Not forked: the file systems' clients have threads.
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        yield from pool.map(check, groups)


def _check_group(
    folder: str, manifest: dict[str, Any], shards: Sequence[dict[str, Any]]
) -> tuple[list[str], np.ndarray]:
    counts = np.zeros(manifest["tokenizer"]["vocab_size"], np.int64)
    return [defect for shard in shards for defect in _check_shard(folder, shard, manifest, counts)], counts


def _check_shard(
    folder: str, shard: dict[str, Any], manifest: dict[str, Any], counts: np.ndarray
) -> Iterator[str]:
    """Checks one shard and adds its attended ids to `counts`."""
    path = filesystem.join(folder, shard["name"])
    data = filesystem.read_bytes(path)
    if len(data) != shard["bytes"]:
        yield f"{path}: {len(data)} bytes, the manifest says {shard['bytes']}"
    crc = f"{google_crc32c.value(data):08x}"
    if crc != shard["crc32c"]:
        yield f"{path}: CRC-32C {crc}, the manifest says {shard['crc32c']}"
    records = checksum = 0
    try:
        for batch in _batches(read_frames(io.BytesIO(data), path)):
            columns = decode_examples(
                batch, max_length=manifest["max_length"], features=tuple(manifest["features"])
            )
            part, defect = _check_rows(columns, manifest, counts)
            if defect:
                yield f"{path}: after record {records}: {defect}"
                return
            checksum += part
            records += len(batch)
    except RecordError as error:
        message = str(error)
        yield message if message.startswith(path) else f"{path}: after record {records}: {message}"
        return
    if records != shard["records"]:
        yield f"{path}: {records} records, the manifest says {shard['records']}"
    if f"{checksum % 2**64:016x}" != shard["rows_checksum"]:
        yield f"{path}: the rows' checksum is {checksum % 2**64:016x}, the manifest says {shard['rows_checksum']}"


def _check_rows(
    columns: dict[str, np.ndarray], manifest: dict[str, Any], counts: np.ndarray
) -> tuple[int, str | None]:
    """The checksum of some rows, and what is wrong with them."""
    ids = columns["input_ids"]
    pad_id = manifest["tokenizer"]["special_token_ids"]["pad"]
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(counts):
        return 0, f"input_ids from {int(ids.min())} to {int(ids.max())}, outside of the vocabulary"
    mask = columns.get("attention_mask")
    mask = ids != pad_id if mask is None else mask
    lengths = mask.sum(axis=1)
    attended = np.arange(ids.shape[1]) < lengths[:, None]
    if not np.array_equal(mask.astype(bool), attended):
        return 0, "the attended positions are not the first of their row"
    if (ids[~attended] != pad_id).any():
        return 0, f"padding that is not the pad id {pad_id}"
    for name in ("segment_ids", "position_ids"):
        if name in columns and (columns[name][~attended] != 0).any():
            return 0, f"{name} that is not 0 at padding"
    if "segment_ids" in columns and (columns["segment_ids"][attended] < 1).any():
        return 0, "segment_ids below 1 at a token"
    counts += np.bincount(ids[attended], minlength=len(counts))
    return rows_checksum(ids.astype(id_dtype(len(counts))), lengths), None


def _batches(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for record in records:
        batch.append(record)
        if len(batch) == _RECORDS_PER_DECODE:
            yield batch
            batch = []
    if batch:
        yield batch


def _check_tokenizer(folder: str, manifest: dict[str, Any]) -> Iterator[str]:
    beside = manifest["tokenizer"]["path"].removeprefix("../")  # object stores know no `..`
    path = filesystem.join(folder.rstrip("/").rpartition("/")[0], beside, "tokenizer.json")
    if not filesystem.exists(path):
        yield f"{path}: missing"
    elif hashlib.sha256(filesystem.read_bytes(path)).hexdigest() != manifest["tokenizer"]["sha256"]:
        yield f"{path}: not the tokenizer that made the dataset: its SHA-256 is another"


def _check_schema(folder: str, manifest: dict[str, Any]) -> Iterator[str]:
    path = filesystem.join(folder, manifests.SCHEMA)
    expected = manifests.schema_pbtxt(
        tuple(manifest["features"]), manifest["max_length"], manifest["tokenizer"]["vocab_size"]
    )
    if not filesystem.exists(path):
        yield f"{path}: missing"
    elif filesystem.read_bytes(path) != expected:
        yield f"{path}: does not describe the records that the manifest names"


def _check_statistics(folder: str, counts: np.ndarray) -> Iterator[str]:
    path = filesystem.join(folder, manifests.STATISTICS)
    if not filesystem.exists(path):
        yield f"{path}: missing"
        return
    try:
        recorded = np.array(json.loads(filesystem.read_bytes(path))["token_counts"], np.int64)
    except (ValueError, KeyError, TypeError) as error:
        yield f"{path}: cannot be read: {error!r}"
        return
    if not np.array_equal(recorded, counts):
        yield f"{path}: its token counts are not those of the shards"
