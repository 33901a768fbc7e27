"""The exact similarity of candidate pairs, computed by the unit of a pair's later document.

The sets of a unit's own documents are in its file. Those of other units are read from their files if these are local.
Elsewhere, many small reads would take too long: each unit sends the sets that others ask for, part by part, so that
neither side has more than a part of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from beam_pipeline.curation.candidates import documents_of, units_of
from beam_pipeline.curation.components import by_partition, distinct, links_of, smallest_reachable
from beam_pipeline.curation.shingles import ShingleSets
from beam_pipeline.curation.similarity import jaccard
from beam_pipeline.dataset.sketches import MappedSets, read_sets, sketches_path
from beam_pipeline.steps.job import Job
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.pipelines import Metrics, TaggedOutput

PAIRS, REQUESTS, LINKS, SIMILAR = "pairs", "requests", "links", "similar"

SIMILARITY = np.dtype([("document", "<u4"), ("like", "<u8"), ("similarity", "<f8")])
"""A document's number in its unit, the id of another document, and their similarity."""

SentSets = tuple[int, bytes, bytes, bytes]
"""Sets that a unit sends: the unit, and the documents' numbers, the sets' starts (int64) and hashes (uint64)."""


class _Comparison(beam.DoFn):
    """Compares pairs of documents, and emits those that are similar, and the links between them."""

    def __init__(self, job: Job, partitions: int):
        self._job = job
        self._partitions = partitions

    def setup(self) -> None:
        self._compared = Metrics.counter("prepare", "near_pairs_compared")
        self._accepted = Metrics.counter("prepare", "near_pairs_similar")

    def _emit(self, unit: int, pairs: np.ndarray, similarities: np.ndarray) -> Iterator[TaggedOutput]:
        """Emits the results of all pairs of a unit.

        Args:
            unit: The unit of the later documents.
            pairs: uint64 [pairs, 2], the ids of the later and the earlier document of each pair.
            similarities: float64 [pairs].
        """
        self._compared.inc(len(pairs))
        is_similar = similarities >= self._job.config.near_threshold
        pairs, similarities = pairs[is_similar], similarities[is_similar]
        self._accepted.inc(len(pairs))
        if not len(pairs):
            return
        roots = smallest_reachable(pairs)
        edges = roots[roots[:, 0] != roots[:, 1]]
        for partition, links in by_partition(links_of(edges), self._partitions):
            yield TaggedOutput(LINKS, (partition, links))
        later, earlier = pairs.T
        yield TaggedOutput(SIMILAR, (unit, similar_entries(later, earlier, similarities).tobytes()))
        # For an earlier document, its most similar one will do: a document that many others resemble costs little.
        best = np.lexsort((later, -similarities, earlier))
        best = best[np.concatenate([[True], earlier[best][1:] != earlier[best][:-1]])]
        entries = similar_entries(earlier[best], later[best], similarities[best])
        units = units_of(earlier[best])
        for part in indices_by_key(units):
            yield TaggedOutput(SIMILAR, (int(units[part[0]]), entries[part].tobytes()))


def similar_entries(ids: np.ndarray, like: np.ndarray, similarities: np.ndarray) -> np.ndarray:
    """Returns `SIMILARITY` entries for documents with these ids, each and the one that is like it."""
    entries = np.empty(len(ids), SIMILARITY)
    entries["document"], entries["like"], entries["similarity"] = documents_of(ids), like, similarities
    return entries


def merge_pairs(parts: Iterable[bytes]) -> np.ndarray:
    """Returns the distinct pairs of a unit: uint64 [pairs, 2], sorted by the earlier documents."""
    pairs = np.frombuffer(b"".join(parts), np.uint64).reshape(-1, 2)
    return distinct(pairs[:, ::-1])[:, ::-1]


class CompareLocally(_Comparison):
    """A unit and the pairs of its documents → similar pairs. Reads the sets from local files."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[TaggedOutput]:
        unit, parts = element
        pairs = merge_pairs(parts)
        own = self._sets(unit)
        own_bounds = own.bounds(documents_of(pairs[:, 0]))
        similarities = np.empty(len(pairs))
        earlier_units = units_of(pairs[:, 1])
        for part in indices_by_key(earlier_units):
            other_unit = int(earlier_units[part[0]])
            other = own if other_unit == unit else self._sets(other_unit)
            bounds = np.concatenate([own_bounds[part], other.bounds(documents_of(pairs[part, 1]))], axis=1)
            similarities[part] = jaccard(own.hashes, other.hashes, bounds)
        yield from self._emit(unit, pairs, similarities)

    def _sets(self, unit: int) -> MappedSets:
        return MappedSets(sketches_path(self._job.staging, unit))


class RequestSets(beam.DoFn):
    """A unit and the pairs of its documents → the distinct pairs, and requests for sets of other units."""

    def process(self, element: tuple[int, Iterable[bytes]]) -> Iterator[TaggedOutput]:
        unit, parts = element
        pairs = merge_pairs(parts)
        yield TaggedOutput(PAIRS, (unit, pairs.tobytes()))
        earlier_units = units_of(pairs[:, 1])
        for part in indices_by_key(earlier_units):
            other = int(earlier_units[part[0]])
            if other != unit:
                documents = np.unique(documents_of(pairs[part, 1]))
                yield TaggedOutput(REQUESTS, (other, (unit, documents.tobytes())))


class SendSets(beam.DoFn):
    """A unit and the requests of others → (unit that asked, `SentSets`)."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: tuple[int, Iterable[tuple[int, bytes]]]) -> Iterator[tuple[int, SentSets]]:
        unit, asked = element
        requests = [(other, np.frombuffer(data, np.int64)) for other, data in asked]
        documents = np.unique(np.concatenate([wanted for _, wanted in requests]))
        for numbers, sets in read_sets(sketches_path(self._job.staging, unit), documents):
            for other, wanted in requests:
                wanted = wanted[slice(*np.searchsorted(wanted, [numbers[0], numbers[-1] + 1]))]
                if len(wanted):
                    sent = sets.take(np.searchsorted(numbers, wanted))
                    yield other, (unit, wanted.tobytes(), sent.starts.tobytes(), sent.hashes.tobytes())


class Compare(_Comparison):
    """A unit, the pairs of its documents and the sets that others have sent → similar pairs."""

    def process(self, element: tuple[int, dict[str, Iterable[Any]]]) -> Iterator[TaggedOutput]:
        unit, joined = element
        pairs = merge_pairs(joined[PAIRS])
        numbers = np.unique(documents_of(pairs[:, 0]))
        own = ShingleSets.concatenate(
            sets for _, sets in read_sets(sketches_path(self._job.staging, unit), numbers)
        )
        similarities = np.empty(len(pairs))
        own_earlier = np.unique(documents_of(pairs[units_of(pairs[:, 1]) == unit, 1]))
        read = ((unit, *part) for part in read_sets(sketches_path(self._job.staging, unit), own_earlier))
        for other_unit, documents, sets in chain(read, map(_received, joined["sets"])):
            first, end = np.searchsorted(
                pairs[:, 1], np.uint64(other_unit << 32) + documents[[0, -1]].astype(np.uint64)
            )
            part = slice(first, np.searchsorted(pairs[:, 1], pairs[end, 1], "right"))
            own_bounds = own.bounds(np.searchsorted(numbers, documents_of(pairs[part, 0])))
            other_bounds = sets.bounds(np.searchsorted(documents, documents_of(pairs[part, 1])))
            similarities[part] = jaccard(
                own.hashes, sets.hashes, np.concatenate([own_bounds, other_bounds], axis=1)
            )
        yield from self._emit(unit, pairs, similarities)


def _received(sent: SentSets) -> tuple[int, np.ndarray, ShingleSets]:
    unit, documents, starts, hashes = sent
    sets = ShingleSets(np.frombuffer(hashes, np.uint64), np.frombuffer(starts, np.int64))
    return unit, np.frombuffer(documents, np.int64), sets
