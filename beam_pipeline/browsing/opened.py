"""The dataset that is browsed, opened once and again if it has been written anew."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from beam_pipeline.browsing.documents import DocumentAccess
from beam_pipeline.browsing.selection import Selection
from beam_pipeline.dataset import bad_records
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import DataError
from beam_pipeline.views.decoding import TextDecoder
from beam_pipeline.views.reading import FinishedSplit, open_dataset
from beam_pipeline.views.row_access import RowAccess
from tokenmill_reader.format.names import MANIFEST

_KEPT_FILTERS = 64


class OpenSplit:
    """A split, and what reads its rows and documents. May be used by several threads."""

    def __init__(self, split: FinishedSplit):
        self.split = split
        self.access = RowAccess(split)
        self.documents = DocumentAccess(split, self.access)
        self.special = frozenset(split.manifest["tokenizer"]["all_special_ids"])
        self.units_of = lru_cache(_KEPT_FILTERS)(self._units_of)

    @property
    def name(self) -> str:
        return self.split.name

    @property
    def has_rows(self) -> bool:
        """Whether documents are packed into rows, rather than each being a record."""
        return self.split.manifest["max_length"] is not None

    def _units_of(self, source: str, unit: int | None) -> tuple[int, ...] | None:
        """Returns the numbers of the work units that read a matching file; None if all do.

        Args:
            source: A part of the path of a file.
            unit: The only unit; None: any.
        """
        if not source and unit is None:
            return None
        units = self.split.units if unit is None else self.split.units[unit : unit + 1]
        return tuple(
            each.index for each in units if any(source in each.root + part.name for part in each.parts)
        )

    def selection(self, source: str, unit: int | None) -> Selection:
        """Returns the rows that have tokens of these work units. See `units_of`."""
        return Selection(self.split, self.access, self.units_of(source, unit))


@dataclass(frozen=True)
class OpenDataset:
    """All splits of a dataset, or one of them."""

    splits: Sequence[OpenSplit]

    @cached_property
    def decoder(self) -> TextDecoder:
        """The decoder of all splits. Raises DataError as `FinishedSplit.decoder`."""
        return self.splits[0].split.decoder()

    @property
    def folder(self) -> str:
        return self.splits[0].split.dataset

    @property
    def name(self) -> str:
        """The name of the dataset's folder."""
        return self.folder.rpartition("/")[2]

    @cached_property
    def bad_record_files(self) -> list[str]:
        """The paths of the files with bad records, which only some runs write."""
        files = filesystem.list_files(filesystem.join(self.folder, bad_records.FOLDER), recursive=False)
        return [path for path, _ in files if bad_records.FILE_NAME.fullmatch(path.rpartition("/")[2])]

    def split(self, name: str) -> OpenSplit | None:
        """Returns the split with this name; the first one for an empty name; None if there is no such split."""
        return next((split for split in self.splits if name in ("", split.name)), None)


class DatasetHolder:
    """Opens a dataset, and opens it again if a manifest has changed since."""

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()
        self._dataset = self._open()

    def get(self) -> OpenDataset:
        """Returns the dataset.

        Raises:
            DataError: If it is no longer there, or is damaged.
        """
        with self._lock:
            try:
                versions = self._current_versions(self._dataset)
            except OSError as error:
                raise DataError(f"{self._path}: is no longer a finished dataset: {error}") from error
            if versions != self._versions:
                self._dataset = self._open()
            return self._dataset

    def _open(self) -> OpenDataset:
        dataset = OpenDataset([OpenSplit(split) for split in open_dataset(self._path)])
        self._versions = self._current_versions(dataset)
        return dataset

    def _current_versions(self, dataset: OpenDataset) -> list[list[int]]:
        """Returns the versions of the manifests. Those of a remote dataset, each a request, are not looked up."""
        paths = [filesystem.join(split.split.folder, MANIFEST) for split in dataset.splits]
        return filesystem.versions(paths) if filesystem.is_local(self._path) else []
