"""Reads a finished dataset: its splits, their records, and the origin of each record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.records import RecordError
from beam_pipeline.errors import DataError, UsageError, one_line
from beam_pipeline.formats import format_of, read_documents
from beam_pipeline.formats.base import DocumentFormat
from beam_pipeline.parsing import parse_own_json
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.routing import Layout, RowTable
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.views.decoding import RowDecoder


@dataclass(frozen=True)
class Row:
    """A decoded record: a row, or a document that is not packed."""

    ids: np.ndarray
    """int64 [tokens], without padding."""
    padding: int
    """Number of padding positions after the tokens."""
    starts: np.ndarray | None
    """Positions at which documents begin: int64, ascending from 0. None if the records do not have them."""


@dataclass(frozen=True)
class Origin:
    """Where a record came from."""

    rank: int
    """The row's number in the split before the shuffle."""
    units: tuple[WorkUnit, ...]
    """The unit that it was packed from; for a row of tails, all units whose tails are in it."""
    position: int
    """The row's number among the rows of its unit, or among the rows of tails."""
    rows: int
    """The number of rows of the split that came from the unit, or from the tails."""
    skip: int | None = None
    """For a row of tails, the number of tokens of the first unit's tail that are in the previous row. Else None."""

    @property
    def is_of_tails(self) -> bool:
        """Whether the row was packed from the tails of units."""
        return self.skip is not None


@dataclass(frozen=True)
class Split:
    """One finished split."""

    folder: str
    manifest: Mapping[str, Any] = field(repr=False)
    """The content of its manifest.json (docs/dataset-format.md)."""

    @property
    def name(self) -> str:
        return self.manifest["split"]

    @property
    def layout(self) -> Layout:
        """The mapping between rows' ranks and their places in shards."""
        return manifests.layout_of(self.manifest)

    @property
    def tokenizer_folder(self) -> str:
        # Object stores do not resolve `..`.
        above = self.folder.rstrip("/").rpartition("/")[0]
        return filesystem.join(above, self.manifest["tokenizer"]["path"].removeprefix("../"))

    def tokenizer_json(self) -> str:
        """Returns the text of the dataset's `tokenizer.json`.

        Raises:
            DataError: If it is missing or is not UTF-8.
        """
        try:
            return self._read(self._tokenizer_path).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self._tokenizer_path}: cannot be loaded: {error}") from error

    def decoder(self) -> RowDecoder:
        """Returns a decoder of the dataset's rows.

        Raises:
            DataError: If the dataset's `tokenizer.json` is missing or cannot be loaded.
        """
        text = self.tokenizer_json()
        try:
            return RowDecoder(text)
        except Exception as error:  # `tokenizers` raises plain Exception
            raise DataError(
                f"{self._tokenizer_path}: cannot be loaded: {one_line(error)}; replace it with the tokenizer that made "
                "the dataset"
            ) from error

    @property
    def _tokenizer_path(self) -> str:
        return filesystem.join(self.tokenizer_folder, "tokenizer.json")

    def statistics(self) -> dict[str, Any]:
        """Returns the content of statistics.json.

        Raises:
            DataError: If it is missing or is not valid JSON.
        """
        path = filesystem.join(self.folder, manifests.STATISTICS)
        try:
            return parse_own_json(self._read(path))
        except ValueError as error:
            raise DataError(f"{path}: broken JSON ({error})") from error

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard's file.

        Raises:
            UsageError: If there is no such shard.
        """
        shards = self.manifest["shards"]
        if not 0 <= shard < len(shards):
            has = f"shards 0 to {len(shards) - 1}" if shards else "no shards: it is empty"
            raise UsageError(f"{self.name} has no shard {shard}; it has {has}")
        return filesystem.join(self.folder, shards[shard]["name"])

    def rows(self, shard: int, first: int = 0, count: int | None = None) -> Iterator[Row]:
        """Streams up to `count` rows or documents of a shard, from number `first` on.

        Raises:
            DataError: If the shard is missing or damaged.
        """
        path = self.shard_path(shard)
        pad_id = self.manifest["tokenizer"]["special_token_ids"]["pad"]
        shard_format = format_of(self.manifest)
        try:
            if isinstance(shard_format, DocumentFormat):
                for block in read_documents(shard_format, path, first, count):
                    yield from _documents(block)
                return
            with filesystem.open_file(path) as file:
                for columns in shard_format.decode(file, path, first, count):
                    for index in range(len(columns["input_ids"])):
                        yield _row({name: values[index] for name, values in columns.items()}, pad_id)
        except RecordError as error:
            raise DataError(f"{path}: {str(error).removeprefix(path).lstrip(': ')}") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}") from error

    def row(self, shard: int, record: int) -> Row:
        """Returns one record.

        Raises:
            UsageError: If there is no such record.
            DataError: If its shard is missing or damaged.
        """
        path = self.shard_path(shard)
        records = self.manifest["shards"][shard]["records"]
        if not 0 <= record < records:
            raise UsageError(f"{path} has records 0 to {records - 1}, not {record}")
        for row in self.rows(shard, record, 1):
            return row
        raise DataError(f"{path}: ends before record {record}, but should contain {records} records")

    def origin(self, shard: int, record: int) -> Origin:
        """Returns where a record came from.

        Inverts the shuffle to get the row's rank, then finds the work unit of this rank.

        Raises:
            DataError: If units.jsonl is missing or does not belong to this split.
        """
        rank = int(self.layout.rank(np.array(shard), np.array(record)))
        lines, table, tails = self._unit_lines
        number, position = table.unit_of(rank, 0)
        rows = int(table.rows[number, 0])
        if number < len(lines) - 1:
            return Origin(rank, (WorkUnit.from_json(lines[number]),), position, rows)
        max_length = self.manifest["max_length"]
        ends = np.cumsum(tails)
        first, last = np.searchsorted(ends, [position * max_length + 1, (position + 1) * max_length])
        units = tuple(
            WorkUnit.from_json(lines[unit])
            for unit in range(first, last + 1)
            if unit < len(tails) and tails[unit]
        )
        return Origin(rank, units, position, rows, position * max_length - int(ends[first] - tails[first]))

    @cached_property
    def units(self) -> list[WorkUnit]:
        """The plan's work units. Raises the errors of `origin`."""
        return [WorkUnit.from_json(line) for line in self._unit_lines[0][:-1]]

    @cached_property
    def _unit_lines(self) -> tuple[list[str], RowTable, np.ndarray]:
        """The lines of units.jsonl (the last is for the tails), the rows of each line, and the tokens of each tail."""
        path = filesystem.join(self.folder, manifests.UNITS)
        lines = self._read(path).decode().splitlines()
        try:
            units = [parse_own_json(line) for line in lines]
            rows = np.array([unit["rows"] for unit in units], np.int64).reshape(-1, 1)
            tails = np.array([unit["tail"] for unit in units[:-1]], np.int64)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: cannot be read: {error!r}") from error
        if int(rows.sum()) != self.manifest["num_records"]:
            raise DataError(
                f"{path}: the units' rows add up to {int(rows.sum())}, but num_records is "
                f"{self.manifest['num_records']}"
            )
        return lines, RowTable(rows), tails

    def _read(self, path: str) -> bytes:
        if not filesystem.exists(path):
            raise DataError(f"{path}: missing")
        return filesystem.read_bytes(path)


def open_split(folder: str) -> Split:
    """Opens the finished split in a folder.

    Raises:
        DataError: If the folder has no finished split.
    """
    return Split(folder, manifests.read_manifest(folder))


def open_dataset(path: str) -> list[Split]:
    """Opens the splits of a dataset, in the order of `--splits`, or a single split.

    Raises:
        DataError: If there is no finished split, or a split is missing.
    """
    if filesystem.exists(filesystem.join(path, manifests.MANIFEST)):
        return [open_split(path)]
    found = manifests.finished_splits(path)
    if not found:
        raise DataError(manifests.no_dataset_reason(path))
    names = open_split(filesystem.join(path, found[0])).manifest["splits"]
    return [open_split(filesystem.join(path, name)) for name in names]


def _documents(block: DocumentBlock) -> Iterator[Row]:
    ends = np.cumsum(block.lengths, dtype=np.int64)
    for end, length in zip(ends.tolist(), block.lengths.tolist(), strict=True):
        yield Row(block.ids[end - length : end].astype(np.int64), 0, np.zeros(1, np.int64))


def _row(columns: Mapping[str, np.ndarray], pad_id: int) -> Row:
    ids = columns["input_ids"]
    tokens = int(columns.get("attention_mask", ids != pad_id).sum())
    starts = None
    if "segment_ids" in columns:
        starts = np.flatnonzero(np.diff(columns["segment_ids"][:tokens], prepend=0))
    elif "position_ids" in columns:
        starts = np.flatnonzero(columns["position_ids"][:tokens] == 0)
    return Row(ids[:tokens], len(ids) - tokens, starts)
