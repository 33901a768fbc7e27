"""Reads any rows of a split by their numbers, which count over all shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.views.reading import FinishedSplit, Row, row_of
from tokenmill_reader import Dataset, DatasetError
from tokenmill_reader.files import Folder, ListingEntry, LocalFolder
from tokenmill_reader.format.manifest import output_format_of

_MOST_SKIPPED = 64  # records to read per row that is needed, rather than opening the file once more


class RowAccess:
    """The rows of a split by their numbers. May be used by several threads."""

    def __init__(self, split: FinishedSplit):
        self._split = split
        self.starts = np.concatenate([[0], np.cumsum(split.manifest["shards"].records, dtype=np.int64)])
        """The number of the first row of each shard, and the number of rows: int64 [shards + 1]."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def place(self, number: int) -> tuple[int, int]:
        """Returns the shard and the record of a row."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return shard, number - int(self.starts[shard])

    def rows(self, numbers: Sequence[int] | np.ndarray) -> list[Row]:
        """Returns the rows with these numbers.

        Raises:
            DataError: If a shard is missing or damaged.
        """
        numbers = np.asarray(numbers, np.int64)
        if not len(numbers):
            return []
        if output_format_of(self._split.manifest) == "tfrecord":
            return self._from_tfrecords(numbers)
        order = np.argsort(numbers, kind="stable")
        by_number = dict(zip(numbers[order].tolist(), self._ascending(numbers[order]), strict=True))
        return [by_number[number] for number in numbers.tolist()]

    def _from_tfrecords(self, numbers: np.ndarray) -> list[Row]:
        pad_id = self._split.manifest["tokenizer"]["special_token_ids"]["pad"]
        try:
            columns = self._dataset[numbers]
        except (DatasetError, OSError) as error:
            raise DataError(str(error)) from error
        return [
            row_of({name: values[index] for name, values in columns.items()}, pad_id)
            for index in range(len(numbers))
        ]

    @cached_property
    def _dataset(self) -> Dataset:
        folder = self._split.folder
        files = LocalFolder(folder) if filesystem.is_local(folder) else _RemoteFolder(folder)
        return Dataset.open(files, check=1)

    def _ascending(self, numbers: np.ndarray) -> Iterator[Row]:
        """Yields the rows with these ascending numbers. Reads those that are close together at once."""
        shards = np.searchsorted(self.starts, numbers, side="right") - 1
        is_far = (np.diff(numbers) > _MOST_SKIPPED) | (np.diff(shards) != 0)
        bounds = [0, *(np.flatnonzero(is_far) + 1).tolist(), len(numbers)]
        for first, end in pairwise(bounds):
            shard, run = int(shards[first]), (numbers[first:end] - self.starts[shards[first]]).tolist()
            count = run[-1] - run[0] + 1
            read = dict(enumerate(self._split.rows(shard, run[0], count), run[0]))
            if len(read) < count:
                raise DataError(f"{self._split.shard_path(shard)}: ends before record {run[-1]}")
            yield from (read[record] for record in run)


class _RemoteFolder(Folder):
    """The folder of a split in a remote file system of the pipeline."""

    is_local = False

    def __init__(self, path: str):
        self.path = path

    def list_files(self, *, sizes: bool) -> Mapping[str, ListingEntry]:
        files = filesystem.list_files(self.path, recursive=False)
        return {path.rpartition("/")[2]: ListingEntry(size) for path, size in files}

    def read(self, name: str) -> bytes | None:
        path = self.join(name)
        return filesystem.read_bytes(path) if filesystem.exists(path) else None

    def join(self, name: str) -> str:
        return filesystem.join(self.path, name)

    def stamp(self, name: str) -> tuple[int, ...] | None:
        return None

    def map(self, name: str) -> np.ndarray:
        self._check(name)
        return np.frombuffer(filesystem.read_bytes(self.join(name)), np.uint8)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self._check(name)
        parts = []
        with filesystem.open_file(self.join(name)) as file:
            for first, end in ranges:
                file.seek(first)
                parts.append(file.read(end - first))
        return parts

    def _check(self, name: str) -> None:
        """Raises the error that the reader expects. Object stores' clients have their own."""
        if not filesystem.exists(self.join(name)):
            raise FileNotFoundError(self.join(name))
