"""Documents that stay although a rule removes them: `--restore FILE`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from beam_pipeline.curation.removals import PII, Removals
from beam_pipeline.support import filesystem
from beam_pipeline.support.arrow import pa, pc, pq
from beam_pipeline.support.errors import UsageError


class Restored:
    """The places of documents to keep, and of those whose personal data are not masked.

    Args:
        paths: Parquet files with the columns path and place, such as those in OUT/removed. Rows whose rule is `pii`
            only concern personal data, and others never do.

    Raises:
        UsageError: If a file cannot be read, or lacks these columns.
    """

    def __init__(self, paths: Sequence[str]):
        tables = list(map(_read, paths))
        self._kept = _by_file([table.filter(pc.not_equal(table["rule"], PII)) for table in tables])
        self._unmasked = _by_file([table.filter(pc.equal(table["rule"], PII)) for table in tables])

    @property
    def files(self) -> list[str]:
        """The files that the lists name, in ascending order."""
        return sorted(self._kept.keys() | self._unmasked.keys())

    def kept(self, path: str, places: np.ndarray) -> np.ndarray:
        """Returns the indices of the places of a file's documents that are restored, int64."""
        return _indices(self._kept, path, places)

    def unmasked(self, path: str, places: np.ndarray) -> np.ndarray:
        """Returns the indices of the places of a file's documents whose personal data stay, int64."""
        return _indices(self._unmasked, path, places)

    def apply(self, removals: Removals, path: str, places: np.ndarray) -> Removals:
        """Returns the removals without restored documents.

        Args:
            removals: Removals of documents of one batch, by their index in it.
            path: The batch's file.
            places: The places of the batch's documents, int64.
        """
        if not len(removals) or not self._kept:
            return removals
        return removals.without(self.kept(path, places))


def _by_file(tables: Sequence[pa.Table]) -> dict[str, np.ndarray]:
    """Returns the places in each file, int64, ascending."""
    places: dict[str, list[np.ndarray]] = {}
    for table in tables:
        for name in table["path"].unique().to_pylist():
            rows = table.filter(pc.equal(table["path"], name))
            places.setdefault(name, []).append(rows["place"].to_numpy())
    return {name: np.unique(np.concatenate(parts)) for name, parts in places.items()}


def _indices(places_by_file: dict[str, np.ndarray], path: str, places: np.ndarray) -> np.ndarray:
    restored = places_by_file.get(path)
    return np.empty(0, np.int64) if restored is None else np.flatnonzero(np.isin(places, restored))


def _read(path: str) -> pa.Table:
    """Returns a list with the columns path, place and rule, which is "" if the file has none."""
    try:
        with filesystem.open_file(path) as file:
            names = ["path", "place", *({"rule"} & set(pq.read_schema(file).names))]
            file.seek(0)
            table = pq.read_table(file, columns=names)
            if "rule" not in names:
                table = table.append_column("rule", pa.array([""] * len(table), pa.string()))
            table = table.select(["path", "place", "rule"])
            return table.cast(
                pa.schema([("path", pa.string()), ("place", pa.int64()), ("rule", pa.string())])
            )
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise UsageError(
            f"--restore {path}: is not a parquet file with the columns path and place, such as those in OUT/removed: "
            f"{error}"
        ) from error
