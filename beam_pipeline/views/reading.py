"""Reads a finished dataset: its splits, their records, and the origin of each record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from beam_pipeline.dataset import manifest as manifests
from beam_pipeline.dataset.forms import UNIT_FORM
from beam_pipeline.dataset.manifest import read_inputs
from beam_pipeline.dataset.records import RecordError
from beam_pipeline.dataset.statistics import HISTOGRAMS, TARGET_HISTOGRAMS, edges_of
from beam_pipeline.formats.base import DocumentFormat
from beam_pipeline.formats.choice import format_of, read_documents
from beam_pipeline.rows.documents import DocumentBlock
from beam_pipeline.rows.routing import RowTable, ShardLayout
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError, UsageError, one_line
from beam_pipeline.views.decoding import TextDecoder
from tokenmill_reader.format.json_form import COUNT, mismatches
from tokenmill_reader.format.json_text import parse_own_json
from tokenmill_reader.format.manifest_form import STATISTICS_FORM
from tokenmill_reader.format.names import MANIFEST, STATISTICS, UNITS


@dataclass(frozen=True)
class Row:
    """A decoded record: a row, or a document that is not packed."""

    ids: np.ndarray
    """int64 [tokens], without padding."""
    padding: int
    """Number of padding positions after the tokens."""
    starts: np.ndarray | None
    """Positions at which documents begin: int64, ascending from 0. None if the records do not contain them."""
    targets: np.ndarray | None = None
    """bool [tokens]: which tokens are targets of the loss. None if the records do not tell."""


@dataclass(frozen=True)
class Origin:
    """The origin of a record: its work unit, and its position there."""

    rank: int
    """The row's number in the split before the shuffle."""
    units: tuple[WorkUnit, ...]
    """The unit of the record; for a row of tails, all units whose tails are in it."""
    position: int
    """The row's number among the rows of its unit, or among the rows of tails."""
    rows: int
    """The number of rows of the split that came from the unit, or from the tails."""
    skipped_tokens: int | None = None
    """For a row of tails: the number of tokens of the first unit's tail in the previous row. Otherwise None."""

    @property
    def is_of_tails(self) -> bool:
        """Whether the row was packed from the tails of units."""
        return self.skipped_tokens is not None


@dataclass(frozen=True)
class FinishedSplit:
    """One finished split."""

    folder: str
    manifest: Mapping[str, Any] = field(repr=False)
    """The content of its manifest.json (docs/dataset-format.md)."""

    @property
    def name(self) -> str:
        """The split's name."""
        return self.manifest["split"]

    @property
    def layout(self) -> ShardLayout:
        """The mapping between rows' ranks and their places in shards."""
        return manifests.layout_of(self.manifest)

    @property
    def dataset(self) -> str:
        """The dataset's folder."""
        return manifests.dataset_of(self.folder)

    def inputs(self) -> Iterator[tuple[str, int]]:
        """Yields the path and size of each input file. Raises DataError if their list is missing or damaged."""
        yield from read_inputs(self.dataset, self.manifest)

    @property
    def tokenizer_folder(self) -> str:
        """The folder of the dataset's tokenizer."""
        # Object stores do not resolve `..`.
        return filesystem.join(self.dataset, self.manifest["tokenizer"]["path"].removeprefix("../"))

    def tokenizer_json(self) -> str:
        """Returns the text of the dataset's `tokenizer.json`.

        Raises:
            DataError: If it is missing or is not UTF-8.
        """
        try:
            return self._read_listed(self._tokenizer_path).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{self._tokenizer_path}: cannot be loaded: {error}") from error

    def decoder(self) -> TextDecoder:
        """Returns a decoder of the dataset's rows.

        Raises:
            DataError: If the dataset's `tokenizer.json` is missing or cannot be loaded.
        """
        text = self.tokenizer_json()
        try:
            return TextDecoder(text)
        except Exception as error:  # `tokenizers` raises plain Exception
            raise DataError(
                f"{self._tokenizer_path}: cannot be loaded: {one_line(error)}; replace it with the tokenizer that made "
                "the dataset"
            ) from error

    @property
    def has_targets(self) -> bool:
        """Whether its tokens are marked as targets of the loss or not: it has conversations."""
        return "loss_mask" in self.manifest["features"]

    @property
    def _tokenizer_path(self) -> str:
        return filesystem.join(self.tokenizer_folder, "tokenizer.json")

    def statistics(self) -> dict[str, Any]:
        """Returns the content of statistics.json.

        Raises:
            DataError: If it is missing or damaged.
        """
        path = filesystem.join(self.folder, STATISTICS)
        statistics = _parse(self._read_listed(path), STATISTICS_FORM, path)
        vocab_size = self.manifest["tokenizer"]["vocab_size"]
        if len(statistics["token_counts"]) != vocab_size:
            counts = len(statistics["token_counts"])
            raise DataError(f"{path}: has {counts} token_counts, but the tokenizer has {vocab_size} ids")
        has_targets = self.manifest["totals"].get("targets", 0) > 0
        for name in (*HISTOGRAMS, *(TARGET_HISTOGRAMS if has_targets else ())):
            if name not in statistics:
                raise DataError(f"{path}: has no {name}, but the manifest counts targets")
            edges, bins = statistics[name]["edges"], len(statistics[name]["counts"])
            if not bins or len(edges) != bins + 1 or edges != edges_of(name, bins):
                raise DataError(f"{path}: {name} does not have the edges of {bins} bins")
        return statistics

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard's file.

        Raises:
            UsageError: If there is no such shard.
        """
        shards = self.manifest["shards"]
        if not 0 <= shard < len(shards):
            existing = f"shards 0 to {len(shards) - 1}" if shards else "no shards: it is empty"
            raise UsageError(f"{self.name} has no shard {shard}; it has {existing}")
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
                    yield from _document_rows(block)
                return
            with filesystem.open_file(path) as file:
                for columns in shard_format.decode(file, path, first, count):
                    for index in range(len(columns["input_ids"])):
                        yield row_of({name: values[index] for name, values in columns.items()}, pad_id)
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
        """Returns the origin of a record.

        Inverts the shuffle to get the row's rank, then finds the work unit of this rank.

        Raises:
            DataError: If units.jsonl is missing or does not belong to this split.
        """
        rank = int(self.layout.rank(np.array(shard), np.array(record)))
        lines, table, tails = self._unit_lines
        unit_index, position = table.unit_of(rank, 0)
        rows = int(table.rows[unit_index, 0])
        if unit_index < len(lines) - 1:
            return Origin(rank, (self._unit(unit_index),), position, rows)
        max_length = self.manifest["max_length"]
        ends = np.cumsum(tails)
        first_unit, last_unit = np.searchsorted(
            ends, [position * max_length + 1, (position + 1) * max_length]
        )
        units = tuple(
            self._unit(unit) for unit in range(first_unit, last_unit + 1) if unit < len(tails) and tails[unit]
        )
        return Origin(
            rank, units, position, rows, position * max_length - int(ends[first_unit] - tails[first_unit])
        )

    @cached_property
    def units(self) -> list[WorkUnit]:
        """The plan's work units. Raises the errors of `origin`."""
        return [self._unit(number) for number in range(len(self._unit_lines[0]) - 1)]

    @property
    def row_table(self) -> RowTable:
        """The number of rows of each work unit, then of the tails. Raises the errors of `origin`."""
        return self._unit_lines[1]

    @property
    def tails(self) -> np.ndarray:
        """The tokens of each unit's tail, int64 [units]. Raises the errors of `origin`."""
        return self._unit_lines[2]

    def _unit(self, number: int) -> WorkUnit:
        """Returns a work unit. Raises the errors of `origin`."""
        line = self._unit_lines[0][number]
        place = f"{filesystem.join(self.folder, UNITS)}, line {number + 1}"
        _parse(line, UNIT_FORM, place)
        return WorkUnit.from_json(line)

    @cached_property
    def _unit_lines(self) -> tuple[list[str], RowTable, np.ndarray]:
        """The lines of units.jsonl (the last is for the tails), the rows of each line, and the tokens of each tail."""
        path = filesystem.join(self.folder, UNITS)
        try:
            lines = self._read_listed(path).decode().split("\n")[:-1]
            units = [parse_own_json(line) for line in lines]
            columns = [[unit["rows"] for unit in units], [unit["tail"] for unit in units[:-1]]]
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}: cannot be read: {error!r}") from error
        for name, values in zip(("rows", "tail"), columns, strict=True):
            for defect in mismatches(values, [COUNT], name):
                raise DataError(f"{path}: {defect}")
        rows, tails = (np.array(values, np.int64) for values in columns)
        if int(rows.sum()) != self.manifest["num_records"]:
            raise DataError(
                f"{path}: the units' rows add up to {int(rows.sum())}, but num_records is "
                f"{self.manifest['num_records']}"
            )
        return lines, RowTable(rows.reshape(-1, 1)), tails

    def _read_listed(self, path: str) -> bytes:
        """Reads a file that the manifest lists, unless it is larger than that: a sparse file may have exabytes."""
        if defect := manifests.size_defect(path, self._listed_sizes.get(path, math.inf)):
            raise DataError(defect)
        return filesystem.read_bytes(path)

    @cached_property
    def _listed_sizes(self) -> dict[str, int]:
        """The bytes of the files of the split and its tokenizer, by their paths."""
        listed_folders = (
            (self.folder, self.manifest["files"]),
            (self.tokenizer_folder, self.manifest["tokenizer"]["files"]),
        )
        return {
            filesystem.join(folder, file["path"]): file["bytes"]
            for folder, files in listed_folders
            for file in files
        }


def _parse(data: bytes | str, form: Any, place: str) -> Any:
    """Parses the JSON of a file or line. Raises DataError if it does not have this form."""
    try:
        value = parse_own_json(data)
    except ValueError as error:
        raise DataError(f"{place}: broken JSON ({error})") from error
    for defect in mismatches(value, form, ""):
        raise DataError(f"{place}: {defect}; verify the dataset, and copy it again")
    return value


def open_split(folder: str) -> FinishedSplit:
    """Opens the finished split in a folder.

    Raises:
        DataError: If the folder has no finished split.
    """
    return FinishedSplit(folder, manifests.read_manifest(folder))


def open_dataset(path: str) -> list[FinishedSplit]:
    """Opens the splits of a dataset, in the order of `--splits`, or a single split.

    Raises:
        DataError: If there is no finished split, or a split is missing.
    """
    if filesystem.exists(filesystem.join(path, MANIFEST)):
        return [open_split(path)]
    finished_names = manifests.finished_splits(path)
    if not finished_names:
        raise DataError(manifests.no_dataset_reason(path))
    split_names = open_split(filesystem.join(path, finished_names[0])).manifest["splits"]
    return [open_split(filesystem.join(path, name)) for name in split_names]


def _document_rows(block: DocumentBlock) -> Iterator[Row]:
    ends = np.cumsum(block.lengths, dtype=np.int64)
    for end, length in zip(ends.tolist(), block.lengths.tolist(), strict=True):
        yield Row(block.ids[end - length : end].astype(np.int64), 0, np.zeros(1, np.int64))


def row_of(columns: Mapping[str, np.ndarray], pad_id: int) -> Row:
    """Returns the row with these features, integers [max_length] by name."""
    ids = columns["input_ids"]
    tokens = int(columns.get("attention_mask", ids != pad_id).sum())
    starts = None
    if "segment_ids" in columns:
        starts = np.flatnonzero(np.diff(columns["segment_ids"][:tokens], prepend=0))
    elif "position_ids" in columns:
        starts = np.flatnonzero(columns["position_ids"][:tokens] == 0)
    targets = columns["loss_mask"][:tokens] != 0 if "loss_mask" in columns else None
    return Row(ids[:tokens].astype(np.int64, copy=False), len(ids) - tokens, starts, targets)
