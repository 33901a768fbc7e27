"""Connected components of a graph in rounds that need no hot key, after Kiveris et al., "Connected Components in
MapReduce and Beyond" (2014): in a round, each vertex links its larger neighbours to the smallest of its neighbours and
itself (large star), and then its smaller neighbours and itself to the smallest of them (small star). O(log² n) rounds
turn each component into a star around its smallest vertex, and in practice O(log n) do.

Vertices are distributed to partitions by a hash, so a step's input are arrays of the links of a partition's vertices. A
step reads them twice, in chunks, and has a few numbers per vertex in memory, however many neighbours one has.

After a fixed number of rounds, `split` sets aside the leaves, which have a single neighbour that is smaller, and what
remains is resolved in memory: little, since stars have no other vertices than their centre and leaves. The result thus
never depends on the number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from beam_pipeline.support.grouping import indices_by_key
from beam_pipeline.support.hashing import mix64

NO_LINKS = np.empty((0, 2), np.uint64)


def smallest_reachable(edges: np.ndarray) -> np.ndarray:
    """Returns each vertex and the smallest one of its component, in ascending order of the vertices.

    >>> smallest_reachable(np.array([[7, 5], [9, 7], [4, 3]], np.uint64)).tolist()
    [[3, 3], [4, 3], [5, 5], [7, 5], [9, 5]]

    In each pass, a tree's root is hooked to the smallest adjacent root, which leaves at most half of the roots.

    Args:
        edges: uint64 [edges, 2], in any order.

    Returns:
        uint64 [vertices, 2].
    """
    vertices, places = np.unique(edges, return_inverse=True)
    ends = places.reshape(edges.shape)
    parent = np.arange(len(vertices))
    while True:
        roots = parent[ends]
        differ = roots[:, 0] != roots[:, 1]
        if not differ.any():
            return np.stack([vertices, vertices[parent]], axis=1)
        ends, roots = ends[differ], roots[differ]
        np.minimum.at(parent, roots.max(axis=1), roots.min(axis=1))
        while (parent[parent] != parent).any():
            parent = parent[parent]


def links_of(edges: np.ndarray) -> np.ndarray:
    """Returns each edge as two links, (vertex, neighbour): uint64 [2 * edges, 2]."""
    return np.concatenate([edges, edges[:, ::-1]])


def distinct(pairs: np.ndarray) -> np.ndarray:
    """Returns the distinct rows, uint64 [pairs, 2], in ascending order."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return pairs[np.concatenate([[True], (pairs[1:] != pairs[:-1]).any(axis=1)])[: len(pairs)]]


def by_partition(links: np.ndarray, partitions: int, column: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields (partition, the distinct links whose vertex in `column` belongs to it, as bytes)."""
    links = distinct(links)
    partition = partition_of(links[:, column], partitions)
    for part in indices_by_key(partition):
        yield int(partition[part[0]]), links[part].tobytes()


def partition_of(vertices: np.ndarray, partitions: int) -> np.ndarray:
    """Returns the partition of each vertex, int64."""
    return (mix64(vertices) % np.uint64(partitions)).astype(np.int64)


def links_from(data: bytes) -> np.ndarray:
    """Inverts `by_partition`: uint64 [links, 2]."""
    return np.frombuffer(data, np.uint64).reshape(-1, 2)


@dataclass(frozen=True)
class Neighbours:
    """The smallest and largest neighbour of each vertex of a partition."""

    vertices: np.ndarray
    """uint64 [vertices], ascending."""
    least: np.ndarray
    """uint64 [vertices]"""
    largest: np.ndarray
    """uint64 [vertices]"""

    @classmethod
    def of_links(cls, chunks: Iterable[bytes]) -> Neighbours:
        """Reads the links of a partition, in any order."""
        total = cls(*(np.empty(0, np.uint64) for _ in range(3)))
        for chunk in chunks:
            vertices, neighbours = links_from(chunk).T
            total = total._merge(vertices, neighbours)
        return total

    def _merge(self, vertices: np.ndarray, neighbours: np.ndarray) -> Neighbours:
        vertices = np.concatenate([self.vertices, vertices])
        order = np.argsort(vertices, kind="stable")
        vertices = vertices[order]
        starts = np.flatnonzero(np.concatenate([[True], vertices[1:] != vertices[:-1]]))
        least = np.minimum.reduceat(np.concatenate([self.least, neighbours])[order], starts)
        largest = np.maximum.reduceat(np.concatenate([self.largest, neighbours])[order], starts)
        return Neighbours(vertices[starts], least, largest)

    def of(self, values: np.ndarray, vertices: np.ndarray) -> np.ndarray:
        """Returns those of `values`, [vertices of the partition], that belong to these vertices."""
        return values[np.searchsorted(self.vertices, vertices)]


def large_star(chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
    """Yields edges (larger, smaller), uint64 [edges, 2], given a partition's links in both directions."""
    neighbours = Neighbours.of_links(chunks)
    least = np.minimum(neighbours.least, neighbours.vertices)
    for chunk in chunks:
        vertices, others = links_from(chunk).T
        larger = others > vertices
        yield np.stack([others[larger], neighbours.of(least, vertices[larger])], axis=1)


def small_star(chunks: Iterable[bytes]) -> Iterator[np.ndarray]:
    """Yields edges (larger, smaller), uint64 [edges, 2], given a partition's links to smaller vertices."""
    neighbours = Neighbours.of_links(chunks)
    yield np.stack([neighbours.vertices, neighbours.least], axis=1)
    for chunk in chunks:
        vertices, others = links_from(chunk).T
        least = neighbours.of(neighbours.least, vertices)
        yield np.stack([others, least], axis=1)[others != least]


def split(chunks: Iterable[bytes]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the leaves of a partition and the edges of its other vertices, given their links in both directions.

    Yields:
        (leaf, its neighbour) and (vertex that is not a leaf, smaller neighbour): uint64 [leaves, 2], [edges, 2].
    """
    neighbours = Neighbours.of_links(chunks)
    is_leaf = (neighbours.least == neighbours.largest) & (neighbours.largest < neighbours.vertices)
    leaves = np.stack([neighbours.vertices, neighbours.least], axis=1)[is_leaf]
    yield leaves, NO_LINKS
    for chunk in chunks:
        links = links_from(chunk)
        in_core = (links[:, 1] < links[:, 0]) & ~neighbours.of(is_leaf, links[:, 0])
        yield NO_LINKS, links[in_core]


def resolve_leaves(
    leaves: Iterable[bytes], roots: Iterable[bytes], *, with_roots: bool = False
) -> Iterator[np.ndarray]:
    """Yields (vertex, smallest vertex of its component) of a partition's vertices and of the leaves beside them.

    Smallest vertices themselves are only among the first ones `with_roots`, perhaps several times.

    Args:
        leaves: The leaves whose neighbour belongs to the partition.
        roots: Vertices of the partition that are not leaves, and the smallest vertex of each one's component.
    """
    known = np.concatenate([NO_LINKS, *map(links_from, roots)])
    known = known[np.argsort(known[:, 0])]
    yield known if with_roots else known[known[:, 0] != known[:, 1]]
    for chunk in leaves:
        links = links_from(chunk)
        places = np.searchsorted(known[:, 0], links[:, 1])
        has_root = places < len(known)
        has_root[has_root] = known[places[has_root], 0] == links[has_root, 1]
        roots_of_leaves = links[:, 1].copy()
        roots_of_leaves[has_root] = known[places[has_root], 1]
        yield np.stack([links[:, 0], roots_of_leaves], axis=1)
        if with_roots:
            centres = np.unique(links[~has_root, 1])
            yield np.stack([centres, centres], axis=1)
