"""Clusters of similar documents, of which the first or best is kept: `curation.components` as steps.

links ─► (large star ─► small star) × rounds ─► split ─┬─ leaves ─────────────────┬─► roots, by unit ─► removals
                                                       └─ the rest, in memory ────┘

The root of a cluster is its first document. If the best one is kept instead, each unit sends its best document of each
cluster to the partition of the root, which answers all units that have documents of the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from beam_pipeline.curation.candidates import document_ids, documents_of, units_of
from beam_pipeline.curation.components import (
    NO_LINKS,
    by_partition,
    distinct,
    large_star,
    links_from,
    links_of,
    partition_of,
    resolve_leaves,
    small_star,
    smallest_reachable,
    split,
)
from beam_pipeline.curation.removals import NEAR, Removals
from beam_pipeline.dataset.sketches import read_scores, sketches_path
from beam_pipeline.sources.units import WorkUnit
from beam_pipeline.steps.deduplicate import DUPLICATE
from beam_pipeline.steps.job import Job
from beam_pipeline.steps.near_duplicates import DECIDED, EQUALS, REMOVED, concatenate, removed_entries
from beam_pipeline.steps.near_similarity import SIMILAR, SIMILARITY
from beam_pipeline.support import pipelines as beam
from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.pipelines import PCollection, TaggedOutput

_BYTES_PER_PARTITION = 256 << 20
_MAX_PARTITIONS = 4096
_BYTES_WITHOUT_ROUNDS = 16 << 30

_LEAVES, _CORE, ROOTS, _BEST = "leaves", "core", "roots", "best"

RANKED = np.dtype([("root", "<u8"), ("document", "<u8"), ("score", "<f8")])
"""The ids of the first document of a cluster and of another one, and the score of the latter."""

Links = tuple[int, bytes]
"""A partition, and links of its vertices: ids, uint64 [links, 2] as bytes."""


def num_partitions(input_bytes: int) -> int:
    """Returns the number of partitions of documents for an input of this size."""
    return max(1, min(_MAX_PARTITIONS, input_bytes // _BYTES_PER_PARTITION))


def num_rounds(input_bytes: int) -> int:
    """Returns the number of rounds for an input of this size, one for each time that it doubles beyond 16 GiB.

    >>> [num_rounds(size) for size in (10**9, 10**11, 10**13)]
    [0, 3, 10]

    The similar documents of 16 GiB are resolved in memory, where they need less than 1 GB.
    """
    return max(0, math.ceil(math.log2(max(1, input_bytes) / _BYTES_WITHOUT_ROUNDS)))


class FindRoots(beam.PTransform):
    """Links of similar documents in both directions, by partition → (unit, (document, first of its cluster)).

    The pairs of ids, uint64 [documents, 2] as bytes, are those of documents that are not the first, or of all
    `with_roots`, in which some may then occur several times.
    """

    def __init__(self, partitions: int, rounds: int, *, with_roots: bool = False):
        self._partitions = partitions
        self._rounds = rounds
        self._with_roots = with_roots

    def expand(self, links: PCollection[Links]) -> PCollection[tuple[int, bytes]]:
        for number in range(1, self._rounds + 1):
            links = (
                links
                | f"GroupForLargeStar{number}" >> beam.GroupByKey()
                | f"LargeStar{number}" >> beam.FlatMap(_star, large_star, partitions=self._partitions)
                | f"GroupForSmallStar{number}" >> beam.GroupByKey()
                | f"SmallStar{number}"
                >> beam.FlatMap(_star, small_star, links_of, partitions=self._partitions)
            )
        divided = (
            links
            | "GroupLinks" >> beam.GroupByKey()
            | "SetLeavesAside" >> beam.FlatMap(_split, self._partitions).with_outputs(_LEAVES, _CORE)
        )
        roots = (
            divided[_CORE]
            | "GatherRest" >> beam.GroupByKey()
            | "ResolveRest" >> beam.FlatMap(_resolve_core, self._partitions)
        )
        return (
            {_LEAVES: divided[_LEAVES], ROOTS: roots}
            | "JoinLeaves" >> beam.CoGroupByKey()
            | "ResolveLeaves" >> beam.FlatMap(_roots_by_unit, with_roots=self._with_roots)
        )


def _star(
    element: tuple[int, Iterable[bytes]],
    star: Callable[[Iterable[bytes]], Iterator[np.ndarray]],
    links_of_edges: Callable[[np.ndarray], np.ndarray] = lambda edges: edges,
    *,
    partitions: int,
) -> Iterator[Links]:
    for edges in star(element[1]):
        yield from by_partition(links_of_edges(edges), partitions)


def _split(element: tuple[int, Iterable[bytes]], partitions: int) -> Iterator[TaggedOutput]:
    for leaves, edges in split(element[1]):
        # A leaf goes to where its neighbour is.
        for partition, data in by_partition(leaves, partitions, column=1):
            yield TaggedOutput(_LEAVES, (partition, data))
        if len(edges):
            yield TaggedOutput(_CORE, (0, edges.tobytes()))


def _resolve_core(element: tuple[int, Iterable[bytes]], partitions: int) -> Iterator[Links]:
    edges = np.concatenate([NO_LINKS, *map(links_from, element[1])])
    yield from by_partition(smallest_reachable(edges), partitions)


def _roots_by_unit(
    element: tuple[int, dict[str, Iterable[bytes]]], *, with_roots: bool
) -> Iterator[tuple[int, bytes]]:
    for roots in resolve_leaves(element[1][_LEAVES], element[1][ROOTS], with_roots=with_roots):
        units = units_of(roots[:, 0])
        for part in indices_by_key(units):
            yield int(units[part[0]]), roots[part].tobytes()


class ChooseKept(beam.PTransform):
    """(unit, (document, first of its cluster)) of all documents in clusters → (unit, (document, best of its cluster)).

    The best one has the highest score. Pairs of ids, uint64 [documents, 2] as bytes.
    """

    def __init__(self, job: Job, partitions: int):
        self._job = job
        self._partitions = partitions

    def expand(self, roots: PCollection[tuple[int, bytes]]) -> PCollection[tuple[int, bytes]]:
        by_unit = roots | "GroupRoots" >> beam.GroupByKey()
        chosen = (
            by_unit
            | "BestOfUnit" >> beam.FlatMap(_best_of_unit, self._job, self._partitions)
            | "GroupBest" >> beam.GroupByKey()
            | "BestOfAll" >> beam.FlatMap(_best_of_all)
        )
        return (
            {ROOTS: by_unit, _BEST: chosen}
            | "JoinBest" >> beam.CoGroupByKey()
            | "KeepBest" >> beam.Map(_keep_best)
        )


def _best_of_unit(
    element: tuple[int, Iterable[bytes]], job: Job, partitions: int
) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yields (partition of roots, (the unit, the best of its documents of each of their clusters: `RANKED`))."""
    unit, parts = element
    pairs = distinct(concatenate(parts, np.uint64).reshape(-1, 2))
    numbers, scores = read_scores(sketches_path(job.staging, unit))
    ranked = np.empty(len(pairs), RANKED)
    ranked["document"], ranked["root"] = pairs.T
    ranked["score"] = scores[np.searchsorted(numbers, documents_of(pairs[:, 0]))]
    ranked = best_of_each(ranked)
    partition = partition_of(ranked["root"], partitions)
    for part in indices_by_key(partition):
        yield int(partition[part[0]]), (unit, ranked[part].tobytes())


def _best_of_all(element: tuple[int, Iterable[tuple[int, bytes]]]) -> Iterator[tuple[int, bytes]]:
    """Yields (unit, (root, the best document of its cluster) for each of the unit's clusters), of one partition."""
    best, parts, pending = np.empty(0, RANKED), [], 0
    for _, data in element[1]:
        parts.append(np.frombuffer(data, RANKED))
        pending += len(parts[-1])
        if pending > len(best):  # so the time does not grow with the square of the units
            best, parts, pending = best_of_each(np.concatenate([best, *parts])), [], 0
    best = best_of_each(np.concatenate([best, *parts]))
    for unit, data in element[1]:
        roots = np.frombuffer(data, RANKED)["root"]
        chosen = best["document"][np.searchsorted(best["root"], roots)]
        yield unit, np.stack([roots, chosen], axis=1).tobytes()


def best_of_each(ranked: np.ndarray) -> np.ndarray:
    """Returns the document of each root with the highest score, and the first of several: `RANKED`, sorted by root."""
    ranked = ranked[np.lexsort((ranked["document"], -ranked["score"], ranked["root"]))]
    return ranked[np.concatenate([[True], ranked["root"][1:] != ranked["root"][:-1]])[: len(ranked)]]


def _keep_best(element: tuple[int, dict[str, Iterable[Any]]]) -> tuple[int, bytes]:
    unit, joined = element
    pairs = distinct(concatenate(chain.from_iterable(joined[ROOTS]), np.uint64).reshape(-1, 2))
    best = concatenate(joined[_BEST], np.uint64).reshape(-1, 2)
    best = best[np.argsort(best[:, 0])]
    kept = best[np.searchsorted(best[:, 0], pairs[:, 1]), 1]
    return unit, np.stack([pairs[:, 0], kept], axis=1)[pairs[:, 0] != kept].tobytes()


def decide(element: tuple[int, dict[str, Iterable[bytes]]]) -> Iterator[tuple[int, bytes]]:
    """Decides which documents of a unit, and of those with equal sets in other units, are removed.

    Args:
        element: The unit; the kept documents of clusters (`FindRoots`, `ChooseKept`), the similar documents
            (`SIMILARITY`) and the equal documents of other units (unit, `DUPLICATE`).

    Yields:
        (unit, `REMOVED` entries as bytes).
    """
    unit, joined = element
    removed = removed_of_unit(concatenate(joined[ROOTS], np.uint64), concatenate(joined[SIMILAR], SIMILARITY))
    yield unit, removed.tobytes()
    for other, data in joined[EQUALS]:
        equal = np.frombuffer(data, DUPLICATE)
        like = document_ids(unit, equal["kept_document"])
        kept = _kept_instead(removed, equal["kept_document"], like)
        yield other, removed_entries(equal["document"], kept, like, 1.0).tobytes()


def removed_of_unit(roots: np.ndarray, similar: np.ndarray) -> np.ndarray:
    """Returns the documents of a unit that are removed, and the one each is compared with.

    That is the document that is kept, if they are similar; otherwise the most similar one, and the first of several.

    Args:
        roots: uint64 [2 * documents]: ids of documents, and of the kept one of the cluster of each.
        similar: `SIMILARITY` [similarities].

    Returns:
        `REMOVED` [documents], in ascending order of the documents.
    """
    roots = roots.reshape(-1, 2)[np.argsort(roots[::2])]
    documents = documents_of(roots[:, 0])
    similar = similar[np.isin(similar["document"], documents)]
    root = roots[np.searchsorted(documents, similar["document"]), 1]
    order = np.lexsort(
        (similar["like"], -similar["similarity"], similar["like"] != root, similar["document"])
    )
    best = similar[order]
    best = best[np.concatenate([[True], best["document"][1:] != best["document"][:-1]])[: len(best)]]
    return removed_entries(documents, roots[:, 1], best["like"], best["similarity"])


def _kept_instead(removed: np.ndarray, documents: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the ids of documents, or of those that are kept instead if they are removed: uint64 [documents]."""
    places = np.minimum(np.searchsorted(removed["document"], documents), max(0, len(removed) - 1))
    if not len(removed):
        return ids
    return np.where(removed["document"][places] == documents, removed["kept"][places], ids)


def join_removed(element: tuple[int, dict[str, Iterable[Any]]]) -> tuple[WorkUnit, bytes]:
    """Joins a unit and its earlier removals with its near-duplicates.

    Returns:
        The unit, and its removals as bytes.
    """
    index, joined = element
    ((unit, earlier),) = joined["unit"]
    near = near_removals(index, concatenate(joined[DECIDED], REMOVED))
    return unit, Removals.concat([Removals.from_bytes(earlier), near]).to_bytes()


def near_removals(unit: int, removed: np.ndarray) -> Removals:
    """Returns the removals of a unit.

    The evidence has the unit and number of the document that is kept, and, if a removed document was not compared with
    that one, those of the one that it is like, which is removed itself.
    """
    removed = np.sort(removed, order="document")
    # Repeats of a document of the unit share its fate.
    is_repeat = (units_of(removed["like"]) == unit) & (removed["kept"] == removed["like"])
    kept = removed["kept"].copy()
    kept[is_repeat] = _kept_instead(removed, documents_of(kept[is_repeat]), kept[is_repeat])
    places = [
        np.stack([units_of(ids), documents_of(ids)], axis=1).tolist() for ids in (kept, removed["like"])
    ]
    evidence = [
        {"kept": kept_place} | ({} if like_place == kept_place else {"like": like_place})
        for kept_place, like_place in zip(*places, strict=True)
    ]
    return Removals.of_rule(NEAR, removed["document"].astype(np.int64), removed["similarity"], evidence)
