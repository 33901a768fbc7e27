"""Checks that shards match the manifest. Reads each shard once, in pieces of bounded size."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from beam_pipeline.dataset.manifest import size_defect
from beam_pipeline.dataset.offsets import OffsetFinder
from beam_pipeline.dataset.records import RecordError
from beam_pipeline.dataset.shards import file_sums, files_of_shard
from beam_pipeline.dataset.statistics import SplitStatistics
from beam_pipeline.engines.token_arrays import id_dtype, with_targets
from beam_pipeline.formats.base import DocumentFormat, RowFormat
from beam_pipeline.formats.choice import format_of, read_documents
from beam_pipeline.rows.blocks import RowBlock
from beam_pipeline.support import filesystem
from tokenmill_reader.format.names import offsets_name

MAX_DEFECTS = 1000
_READ_BYTES = 4 << 20


@dataclass
class ShardFindings:
    """The findings in some shards of a split. `merge` adds the findings in others."""

    statistics: SplitStatistics
    """The statistics of the rows, without those of documents."""
    bytes: int
    """The size of the shards."""
    defects: list[tuple[int, str]]
    """(the shard's number, a message) of the first `MAX_DEFECTS` defects, in the order of the shards."""
    num_defects: int
    """The number of all defects."""

    @classmethod
    def empty(cls, vocab_size: int) -> ShardFindings:
        """Returns the findings in no shards."""
        return cls(SplitStatistics.empty(vocab_size), 0, [], 0)

    def add_defect(self, shard: int, defect: str) -> None:
        """Counts a defect of the shard with this number."""
        self.num_defects += 1
        if len(self.defects) < MAX_DEFECTS:
            self.defects.append((shard, defect))

    def merge(self, other: ShardFindings) -> ShardFindings:
        """Adds `other` in place, and returns self."""
        self.statistics.merge(other.statistics)
        self.bytes += other.bytes
        self.defects = sorted([*self.defects, *other.defects], key=lambda entry: entry[0])[:MAX_DEFECTS]
        self.num_defects += other.num_defects
        return self

    def messages(self, folder: str) -> Iterator[str]:
        """Yields the messages in the order of the shards."""
        yield from (defect for _, defect in self.defects)
        if self.num_defects > len(self.defects):
            yield f"{folder}: {self.num_defects - len(self.defects)} more defects in its shards"


def shard_check_fields(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of the manifest that `check_shards` needs. It is small, unlike the list of shards."""
    names = ("max_length", "features", "tokenizer", "output_format", "ids_column", "record_columns")
    return {name: manifest[name] for name in names if name in manifest}


def check_shards(
    folder: str, manifest: Mapping[str, Any], first_shard: int, shards: Sequence[Mapping[str, Any]]
) -> ShardFindings:
    """Checks consecutive shards, from number `first_shard` on.

    `manifest` is the manifest, or the part of it that `shard_check_fields` returns.
    """
    findings = ShardFindings.empty(manifest["tokenizer"]["vocab_size"])
    for number, shard in enumerate(shards, first_shard):
        findings.bytes += shard["bytes"]
        for defect in _check_shard(
            filesystem.join(folder, shard["name"]), shard, manifest, findings.statistics
        ):
            findings.add_defect(number, defect)
    return findings


class _ChecksummedFile(io.RawIOBase):
    """A file that computes the size and CRC-32C of the bytes that are read, and finds the records in them."""

    def __init__(self, file: BinaryIO, finder: OffsetFinder):
        self._file, self._finder = file, finder
        self.bytes = self.crc = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        self.crc = google_crc32c.extend(self.crc, data)
        self._finder.add(data)
        return len(data)


def _check_shard(
    path: str, shard: Mapping[str, Any], manifest: Mapping[str, Any], statistics: SplitStatistics
) -> Iterator[str]:
    """Yields a message for each defect of one shard. Adds its rows to `statistics` if they can be read."""
    shard_statistics = SplitStatistics.empty(len(statistics.token_counts))
    shard_format = format_of(manifest)
    finder = OffsetFinder()
    try:
        if isinstance(shard_format, RowFormat) and shard_format.sequential:
            if defect := size_defect(path, shard["bytes"]):
                yield defect
                return
            *sums, defect = _read_once(shard_format, path, manifest, shard_statistics, finder)
            damage = [*_compare_sums(path, tuple(sums), (shard["bytes"], shard["crc32c"]))]
        else:
            if damage := [*_check_files(path, shard)]:
                yield from damage
                return  # libraries may crash on damaged files
            defect = _check_content(shard_format, path, manifest, shard_statistics)
    except OSError as error:
        yield f"{path}: cannot be read: {error}"
        return
    yield from damage
    if defect:
        yield defect if defect.startswith(path) else f"{path}: {defect}"
        return
    if "offsets_crc32c" in shard:
        yield from _check_offsets(path, shard, finder.to_bytes())
    if shard_statistics.rows != shard["records"]:
        yield f"{path}: {shard_statistics.rows} records, the manifest specifies {shard['records']}"
    checksum = f"{shard_statistics.rows_checksum:016x}"
    if checksum != shard["rows_checksum"]:
        yield f"{path}: the rows' checksum is {checksum}, the manifest specifies {shard['rows_checksum']}"
    statistics.merge(shard_statistics)


def _check_offsets(path: str, shard: Mapping[str, Any], expected: bytes) -> Iterator[str]:
    """Yields a message if the file with a shard's offsets is missing or wrong."""
    folder, _, name = path.rpartition("/")
    offsets = filesystem.join(folder, offsets_name(name))
    try:
        if defect := size_defect(offsets, len(expected)):
            yield f"{defect}; programs can read the dataset without it, but more slowly"
            return
        data = filesystem.read_bytes(offsets)
    except OSError as error:
        yield f"{offsets}: cannot be read: {error}"
        return
    if data != expected:
        yield f"{offsets}: {len(data)} bytes that are not the offsets of the records in {name}"
    elif f"{google_crc32c.value(data):08x}" != shard["offsets_crc32c"]:
        yield f"{offsets}: its CRC-32C is not {shard['offsets_crc32c']}, as the manifest specifies"


def _check_files(path: str, shard: Mapping[str, Any]) -> Iterator[str]:
    """Compares the files of a shard with the manifest."""
    for name, sums in files_of_shard(shard).items():
        yield from _check_sums(filesystem.join(path.rpartition("/")[0], name), sums)


def check_file(folder: str, entry: Mapping[str, Any]) -> Iterator[str]:
    """Compares a file with its entry in a manifest. Yields a message for each defect."""
    yield from _check_sums(filesystem.join(folder, entry["path"]), (entry["bytes"], entry["crc32c"]))


def _check_sums(path: str, expected: tuple[int, str]) -> Iterator[str]:
    """Compares the size and checksum of a file with the manifest. Yields a message for each defect."""
    try:
        if defect := size_defect(path, expected[0]):
            yield defect
            return
        yield from _compare_sums(path, file_sums(path), expected)
    except OSError as error:
        yield f"{path}: cannot be read: {error}"


def _compare_sums(path: str, actual: tuple[int, str], expected: tuple[int, str]) -> Iterator[str]:
    """Compares the size and checksum of a file with the manifest."""
    if actual[0] != expected[0]:
        yield f"{path}: {actual[0]} bytes, the manifest specifies {expected[0]}"
    if actual[1] != expected[1]:
        yield f"{path}: CRC-32C {actual[1]}, the manifest specifies {expected[1]}"


def _check_content(
    shard_format: RowFormat | DocumentFormat,
    path: str,
    manifest: Mapping[str, Any],
    statistics: SplitStatistics,
) -> str | None:
    """Adds a shard's rows or documents to `statistics`, and returns the first defect; None if there is none."""
    if isinstance(shard_format, RowFormat):
        with filesystem.open_file(path) as file:
            return _check_rows(shard_format, file, path, manifest, statistics)
    try:
        for block in read_documents(shard_format, path):
            statistics.token_counts += np.bincount(block.ids, minlength=len(statistics.token_counts))
            statistics.tokens += len(block.ids)
            statistics.add_rows(block)
    except RecordError as error:
        return str(error)
    return None


def _read_once(
    shard_format: RowFormat,
    path: str,
    manifest: Mapping[str, Any],
    statistics: SplitStatistics,
    finder: OffsetFinder,
) -> tuple[int, str, str | None]:
    """Combines `file_sums`, `_check_rows` and finding the offsets, and reads the file only once."""
    with filesystem.open_file(path) as file:
        checksummed = _ChecksummedFile(file, finder)
        reader = io.BufferedReader(checksummed, _READ_BYTES)
        defect = _check_rows(shard_format, reader, path, manifest, statistics)
        while reader.read(_READ_BYTES):  # the rest after a malformed record, for the checksum
            pass
    return checksummed.bytes, f"{checksummed.crc:08x}", defect


def _check_rows(
    shard_format: RowFormat,
    file: BinaryIO,
    path: str,
    manifest: Mapping[str, Any],
    statistics: SplitStatistics,
) -> str | None:
    """Adds a shard's rows to `statistics`, and returns the first defect; None if there is none."""
    try:
        for columns in shard_format.decode(file, path):
            defect = _add_rows(columns, manifest, statistics)
            if defect:
                return f"after record {statistics.rows}: {defect}"
    except RecordError as error:
        message = str(error)
        return message if message.startswith(path) else f"after record {statistics.rows}: {message}"
    return None


def _add_rows(
    columns: Mapping[str, np.ndarray], manifest: Mapping[str, Any], statistics: SplitStatistics
) -> str | None:
    """Adds rows to `statistics` if they have no defect. Otherwise returns the defect."""
    ids = columns["input_ids"]
    vocab_size = len(statistics.token_counts)
    pad_id = manifest["tokenizer"]["special_token_ids"]["pad"]
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return f"input_ids range from {int(ids.min())} to {int(ids.max())}, outside of the vocabulary"
    mask = columns.get("attention_mask")
    mask = ids != pad_id if mask is None else mask
    lengths = mask.sum(axis=1)
    attended = np.arange(ids.shape[1]) < lengths[:, None]
    if not np.array_equal(mask, attended):
        return "the attended positions are not the first of their row"
    if not (lengths > 0).all():
        return "a row has no tokens"
    if (ids[~attended] != pad_id).any():
        return f"padding is not the pad id {pad_id}"
    for name in ("segment_ids", "position_ids", "loss_mask"):
        if name in columns and (columns[name][~attended] != 0).any():
            return f"{name} are not 0 at padding"
    defect = _check_segments(columns, attended)
    if defect:
        return defect
    statistics.token_counts += np.bincount(ids[attended], minlength=vocab_size)
    statistics.tokens += int(lengths.sum())
    words = ids.astype(id_dtype(vocab_size))
    if "loss_mask" in columns:
        targets = columns["loss_mask"]
        if targets.size and not 0 <= int(targets.min()) <= int(targets.max()) <= 1:
            return f"loss_mask ranges from {int(targets.min())} to {int(targets.max())}, not from 0 to 1"
        if not targets.any(axis=1).all():
            return "a row has no target"
        statistics.targets += int(targets.sum())
        words = with_targets(words, targets != 0)
    statistics.add_rows(RowBlock(words, lengths.astype(np.uint32)))
    return None


def _check_segments(columns: Mapping[str, np.ndarray], attended: np.ndarray) -> str | None:
    """Checks that segments count up from 1, and positions count up from 0 within each segment."""
    has_previous = attended[:, 1:]
    segments, positions = columns.get("segment_ids"), columns.get("position_ids")
    if segments is not None:
        steps = np.diff(segments, axis=1)[has_previous]
        if (segments[attended] < 1).any():
            return "segment_ids are below 1 at a token"
        if (segments[:, 0] != 1).any() or not np.isin(steps, (0, 1)).all():
            return "segment_ids do not count up from 1"
    if positions is not None:
        current, previous = positions[:, 1:][has_previous], positions[:, :-1][has_previous]
        if (positions[:, 0] != 0).any() or not ((current == 0) | (current == previous + 1)).all():
            return "position_ids do not count up from 0"
    if segments is None or positions is None:
        return None
    if not np.array_equal(np.diff(segments, axis=1)[has_previous] == 1, positions[:, 1:][has_previous] == 0):
        return "segment_ids and position_ids disagree about the beginnings of documents"
    return None
