"""Documents that stay although a rule removes them: `--restore FILE`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.curation.removals import Removals
from beam_pipeline.support import filesystem
from beam_pipeline.support.errors import UsageError


class Restored:
    """The places of documents to keep.

    Args:
        paths: Parquet files with the columns path and place, such as those in OUT/removed.

    Raises:
        UsageError: If a file cannot be read, or lacks these columns.
    """

    def __init__(self, paths: Sequence[str]):
        places: dict[str, list[np.ndarray]] = {}
        for path in paths:
            table = _read(path)
            for name in table["path"].unique().to_pylist():
                rows = table.filter(pc.equal(table["path"], name))
                places.setdefault(name, []).append(rows["place"].to_numpy())
        self._places = {name: np.unique(np.concatenate(parts)) for name, parts in places.items()}

    @property
    def files(self) -> list[str]:
        """The files that the lists name, in ascending order."""
        return sorted(self._places)

    def kept(self, path: str, places: np.ndarray) -> np.ndarray:
        """Returns the indices of the places of a file's documents that are restored, int64."""
        restored = self._places.get(path)
        return np.empty(0, np.int64) if restored is None else np.flatnonzero(np.isin(places, restored))

    def apply(self, removals: Removals, path: str, places: np.ndarray, first: int) -> Removals:
        """Returns the removals without restored documents.

        Args:
            removals: Removals of documents of one batch.
            path: The batch's file.
            places: The places of the batch's documents, int64.
            first: The number in `removals` of the batch's first document.
        """
        return (
            removals.without(self.kept(path, places) + first) if len(removals) and self._places else removals
        )


def _read(path: str) -> pa.Table:
    try:
        with filesystem.open_file(path) as file:
            return pq.read_table(file, columns=["path", "place"]).cast(
                pa.schema([("path", pa.string()), ("place", pa.int64())])
            )
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise UsageError(
            f"--restore {path}: is not a parquet file with the columns path and place, such as those in OUT/removed: "
            f"{error}"
        ) from error
