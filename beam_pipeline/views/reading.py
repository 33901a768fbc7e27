"""Reading a finished dataset: its splits, their records, and where each record came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from beam_pipeline import filesystem
from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.records import RecordError, decode_frames, read_frames
from beam_pipeline.errors import DataError, UsageError
from beam_pipeline.parsing import parse_own_json
from beam_pipeline.rows.routing import Layout, RowTable
from beam_pipeline.sources.units import WorkUnit


@dataclass(frozen=True)
class Row:
    """A record, decoded.

    Attributes:
      ids: int64 [tokens], the attended ids.
      padding: how many positions follow them.
      starts: int64, ascending from 0, where each document's part begins; None where the records do not say.
    """

    ids: np.ndarray
    padding: int
    starts: np.ndarray | None


@dataclass(frozen=True)
class Origin:
    """Where a record came from.

    Attributes:
      rank: the row's number in the split before the shuffle.
      units: the work unit it was packed from; for a row of tails, all whose ends are in it.
      position: the row's number among those of its unit, or among those of the tails.
      rows: how many rows the unit gave to the split, or the tails did.
      skip: for a row of tails, how many tokens of the first unit's tail stand in the row before; None for others.
    """

    rank: int
    units: tuple[WorkUnit, ...]
    position: int
    rows: int
    skip: int | None = None

    @property
    def is_of_tails(self) -> bool:
        """Whether the row holds what was left over at the units' ends."""
        return self.skip is not None


@dataclass(frozen=True)
class Split:
    """One finished split.

    Attributes:
      folder: where it is.
      manifest: what it says of itself (docs/dataset-format.md).
    """

    folder: str
    manifest: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        return self.manifest["split"]

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(self.manifest["features"])

    @property
    def layout(self) -> Layout:
        """The rows' places, by their ranks."""
        return manifests.layout_of(self.manifest)

    @property
    def tokenizer_folder(self) -> str:
        # Object stores know no `..`.
        above = self.folder.rstrip("/").rpartition("/")[0]
        return filesystem.join(above, self.manifest["tokenizer"]["path"].removeprefix("../"))

    def tokenizer_json(self) -> str:
        """The text of the dataset's `tokenizer.json`.

        Raises:
          DataError: where it is missing.
        """
        return self._read(filesystem.join(self.tokenizer_folder, "tokenizer.json")).decode()

    def statistics(self) -> dict[str, Any]:
        """The content of statistics.json.

        Raises:
          DataError: where it is missing or broken.
        """
        path = filesystem.join(self.folder, manifests.STATISTICS)
        try:
            return parse_own_json(self._read(path))
        except ValueError as error:
            raise DataError(f"{path}: broken JSON ({error})") from error

    def shard_path(self, shard: int) -> str:
        """The path of a shard's file.

        Raises:
          UsageError: where there is no such shard.
        """
        shards = self.manifest["shards"]
        if not 0 <= shard < len(shards):
            has = f"shards 0 to {len(shards) - 1}" if shards else "no shards: it is empty"
            raise UsageError(f"{self.name} has no shard {shard}; it has {has}")
        return filesystem.join(self.folder, shards[shard]["name"])

    def rows(self, shard: int, first: int = 0, count: int | None = None) -> Iterator[Row]:
        """A shard's rows from `first` on, streamed.

        Raises:
          DataError: where the shard is missing or not well-formed.
        """
        path = self.shard_path(shard)
        max_length = self.manifest["max_length"]
        pad_id = self.manifest["tokenizer"]["special_token_ids"]["pad"]
        try:
            with filesystem.open_file(path) as file:
                frames = islice(read_frames(file, path), first, None if count is None else first + count)
                for columns in decode_frames(frames, max_length=max_length, features=self.features):
                    for index in range(len(columns["input_ids"])):
                        yield _row({name: values[index] for name, values in columns.items()}, pad_id)
        except RecordError as error:
            raise DataError(f"{path}: {str(error).removeprefix(path).lstrip(': ')}") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}") from error

    def row(self, shard: int, record: int) -> Row:
        """One record.

        Raises:
          UsageError: where there is no such record.
          DataError: where its shard is missing or not well-formed.
        """
        path = self.shard_path(shard)
        records = self.manifest["shards"][shard]["records"]
        if not 0 <= record < records:
            raise UsageError(f"{path} has records 0 to {records - 1}, not {record}")
        for row in self.rows(shard, record, 1):
            return row
        raise DataError(f"{path}: ends before record {record}, though it should hold {records}")

    def origin(self, shard: int, record: int) -> Origin:
        """Where a record came from: the inverse of the shuffle, then the work unit that holds the row's rank.

        Raises:
          DataError: where units.jsonl is missing or is not this split's.
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
        """The plan's work units; see `origin` for errors."""
        return [WorkUnit.from_json(line) for line in self._unit_lines[0][:-1]]

    @cached_property
    def _unit_lines(self) -> tuple[list[str], RowTable, np.ndarray]:
        """The lines of units.jsonl, of which the last stands for the tails; the rows of each; the tails' tokens."""
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
                f"{path}: the units' rows add up to {int(rows.sum())}, num_records is {self.manifest['num_records']}"
            )
        return lines, RowTable(rows), tails

    def _read(self, path: str) -> bytes:
        if not filesystem.exists(path):
            raise DataError(f"{path}: missing")
        return filesystem.read_bytes(path)


def open_split(folder: str) -> Split:
    """The finished split in a folder.

    Raises:
      DataError: where there is none.
    """
    return Split(folder, manifests.read_manifest(folder))


def open_dataset(path: str) -> list[Split]:
    """The splits of a dataset's folder in the order they were named, or the one split whose folder it is.

    Raises:
      DataError: where there is no finished split, or one is missing.
    """
    if filesystem.exists(filesystem.join(path, manifests.MANIFEST)):
        return [open_split(path)]
    found = manifests.finished_splits(path)
    if not found:
        raise DataError(
            f"{path}: no split in it has a {manifests.MANIFEST}, so this is not a finished dataset"
        )
    names = open_split(filesystem.join(path, found[0])).manifest["splits"]
    return [open_split(filesystem.join(path, name)) for name in names]


def _row(columns: Mapping[str, np.ndarray], pad_id: int) -> Row:
    ids = columns["input_ids"]
    tokens = int(columns.get("attention_mask", ids != pad_id).sum())
    starts = None
    if "segment_ids" in columns:
        starts = np.flatnonzero(np.diff(columns["segment_ids"][:tokens], prepend=0))
    elif "position_ids" in columns:
        starts = np.flatnonzero(columns["position_ids"][:tokens] == 0)
    return Row(ids[:tokens], len(ids) - tokens, starts)
