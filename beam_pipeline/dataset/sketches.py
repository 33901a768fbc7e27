"""What near-deduplication compares of a work unit's documents, in a file per unit below the staging folder.

Each document has a key (a hash of its set of shingles), bands of MinHashes, and the set itself. Sets are read part by
part to send them to other workers, or one by one from local files.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from beam_pipeline.curation.shingles import ShingleSets
from beam_pipeline.dataset.sections import (
    Section,
    create_sections,
    open_sections,
    read_if_intact,
    read_index,
    read_section,
)
from beam_pipeline.support import filesystem


class Sketches(NamedTuple):
    """Consecutive documents of a unit."""

    numbers: np.ndarray
    """int64 [documents]: their numbers in the unit."""
    keys: np.ndarray
    """uint64 [documents, 2]"""
    bands: np.ndarray
    """uint64 [documents, bands]"""
    sets: ShingleSets
    """The sets of shingles."""
    scores: np.ndarray | None = None
    """float64 [documents]: the scores of `--dedup_keep`, if it has any."""


@dataclass(frozen=True)
class SketchKeys:
    """What other units are first compared by."""

    numbers: np.ndarray
    """int64 [documents]: the numbers of the documents in the unit, ascending."""
    keys: np.ndarray
    """uint64 [documents, 2]"""
    scores: np.ndarray | None = None
    """float64 [documents], see `Sketches`."""


def sketches_path(staging: str, unit: int) -> str:
    """Returns the path of the sketches of a unit's documents."""
    return filesystem.join(staging, "units", f"unit-{unit:07d}.sketches")


def write_sketches(
    path: str, parts: Iterable[Sketches], bands: int, finish: Callable[[], Mapping[str, Any]]
) -> SketchKeys:
    """Writes the sketches of a unit.

    Args:
        path: The file.
        parts: The sketches of all documents, in order. Their sets are written one part at a time.
        bands: The number of bands.
        finish: Returns further entries of the index, when all parts are read; called before the file appears.
    """
    numbers = [np.empty(0, np.int64)]
    keys = [np.empty((0, 2), np.uint64)]
    all_bands = [np.empty((0, bands), np.uint64)]
    sizes = [np.empty(0, np.int64)]
    scores: list[np.ndarray] = []
    with create_sections(path) as sections:
        sets = []
        for part in parts:
            numbers.append(part.numbers)
            keys.append(part.keys)
            all_bands.append(part.bands)
            sizes.append(np.diff(part.sets.starts))
            sets.append(sections.add(part.sets.hashes.tobytes()))
            if part.scores is not None:
                scores.append(part.scores)
        all_scores = np.concatenate(scores) if scores else None
        result = SketchKeys(np.concatenate(numbers), np.concatenate(keys), all_scores)
        starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
        arrays = {
            "numbers": result.numbers,
            "keys": result.keys,
            "bands": np.concatenate(all_bands),
            "starts": starts,
        } | ({} if all_scores is None else {"scores": all_scores})
        places = {name: sections.add(array.tobytes()) for name, array in arrays.items()}
        parts_of_sets = {"sets": sets, "documents": [len(part) for part in numbers[1:]]}
        sections.end({**finish(), **places, **parts_of_sets, "num_bands": bands})
    return result


def kept_sketches(path: str, identity: Mapping[str, Any]) -> SketchKeys | None:
    """Returns what an earlier attempt wrote, or None if there is no intact file of it."""

    def read(file: BinaryIO, index: dict[str, Any]) -> SketchKeys:
        for section in (*index["sets"], index["bands"], index["starts"]):
            read_section(file, Section(*section), path)
        scores = _array(file, index, "scores", path) if "scores" in index else None
        return SketchKeys(
            _array(file, index, "numbers", path), _array(file, index, "keys", path).reshape(-1, 2), scores
        )

    return read_if_intact(path, identity, read)


_DTYPES = {
    "numbers": np.int64,
    "keys": np.uint64,
    "bands": np.uint64,
    "starts": np.int64,
    "scores": np.float64,
}


def _array(file: BinaryIO, index: Mapping[str, Any], name: str, path: str) -> np.ndarray:
    return np.frombuffer(read_section(file, Section(*index[name]), path), _DTYPES[name])


def read_bands(path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers, keys and bands of all documents: int64 [documents], uint64 [documents, 2 and bands]."""
    with open_sections(path) as file:
        index = read_index(file, path)
        numbers, keys, bands = (_array(file, index, name, path) for name in ("numbers", "keys", "bands"))
    return numbers, keys.reshape(-1, 2), bands.reshape(len(numbers), index["num_bands"])


def read_scores(path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the numbers of all documents, and their scores if they have any: int64, float64 [documents]."""
    with open_sections(path) as file:
        index = read_index(file, path)
        scores = _array(file, index, "scores", path) if "scores" in index else None
        return _array(file, index, "numbers", path), scores


def read_sets(path: str, documents: np.ndarray) -> Iterator[tuple[np.ndarray, ShingleSets]]:
    """Reads sets of documents with these numbers, ascending and without repeats, in parts of about a batch.

    Yields:
        The numbers of some of the documents, and their sets.
    """
    with open_sections(path) as file:
        index = read_index(file, path)
        numbers, starts = (_array(file, index, name, path) for name in ("numbers", "starts"))
        places = np.searchsorted(numbers, documents)
        first = 0
        for count, section in zip(index["documents"], index["sets"], strict=True):
            end = first + count
            in_part = places[slice(*np.searchsorted(places, [first, end]))]
            if len(in_part):
                hashes = np.frombuffer(read_section(file, Section(*section), path), np.uint64)
                sets = ShingleSets(hashes, starts[first : end + 1] - starts[first])
                yield numbers[in_part], sets.take(in_part - first)
            first = end


class MappedSets:
    """The sets of a unit in a local file, of which only what is used is read."""

    def __init__(self, path: str):
        with open_sections(path) as file:
            index = read_index(file, path)
            size = sum(section[1] for section in index["sets"])
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self.hashes = self._view(0, size, np.uint64)
        """uint64 [shingles]: all sets."""
        self._numbers = self._view(*index["numbers"][:2], np.int64)
        self._starts = self._view(*index["starts"][:2], np.int64)

    def _view(self, offset: int, size: int, dtype: type) -> np.ndarray:
        return np.frombuffer(self._map, dtype, size // 8, offset) if self._map else np.empty(0, dtype)

    def bounds(self, documents: np.ndarray) -> np.ndarray:
        """Returns the begin and end of the sets of documents with these numbers: int64 [documents, 2]."""
        places = np.searchsorted(self._numbers, documents)
        return np.stack([self._starts[places], self._starts[places + 1]], axis=1)
