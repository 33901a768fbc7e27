import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation.components import (
    NO_LINKS,
    by_partition,
    large_star,
    links_from,
    links_of,
    resolve_leaves,
    small_star,
    smallest_reachable,
    split,
)

Links = dict[int, list[bytes]]


def roots_by_union_find(edges: np.ndarray) -> dict[int, int]:
    parent: dict[int, int] = {}

    def find(vertex: int) -> int:
        while parent.setdefault(vertex, vertex) != vertex:
            vertex = parent[vertex]
        return vertex

    for one, other in edges.tolist():
        low, high = sorted((find(one), find(other)))
        parent[high] = low
    return {vertex: find(vertex) for vertex in parent}


def distribute(parts: list[np.ndarray], partitions: int, column: int = 0) -> Links:
    """As a shuffle does, with the arrays of each partition in any order."""
    grouped: Links = {}
    for part in reversed(parts):
        for partition, data in by_partition(part, partitions, column):
            grouped.setdefault(partition, []).append(data)
    return grouped


def run_rounds(parts: list[np.ndarray], partitions: int, rounds: int) -> list[np.ndarray]:
    for _ in range(rounds):
        links = distribute([links_of(part) for part in parts], partitions)
        parts = [edges for chunks in links.values() for edges in large_star(chunks)]
        links = distribute(parts, partitions)
        parts = [edges for chunks in links.values() for edges in small_star(chunks)]
    return parts


def roots_by_rounds(parts: list[np.ndarray], partitions: int, rounds: int) -> tuple[dict[int, int], int]:
    """Returns the root of each vertex but the roots, and the number of edges that are resolved in memory."""
    links = distribute([links_of(part) for part in run_rounds(parts, partitions, rounds)], partitions)
    divided = [pair for chunks in links.values() for pair in split(chunks)]
    core = np.concatenate([NO_LINKS, *(edges for _, edges in divided)])
    roots = distribute([smallest_reachable(core)], partitions)
    leaves = distribute([part for part, _ in divided], partitions, column=1)
    pairs = [
        pair
        for partition in {*roots, *leaves}
        for part in resolve_leaves(leaves.get(partition, []), roots.get(partition, []))
        for pair in part.tolist()
    ]
    assert len(pairs) == len({vertex for vertex, _ in pairs})
    return dict(pairs), len(core)


vertices = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))
edges_of_graphs = st.lists(
    st.lists(st.tuples(vertices, vertices).filter(lambda edge: edge[0] != edge[1]), max_size=12), max_size=4
)


@given(edges_of_graphs, st.integers(1, 3), st.integers(0, 3))
def test_components_are_those_of_union_find_after_any_number_of_rounds(lists, partitions, rounds):
    parts = [np.sort(np.array(edges, np.uint64).reshape(-1, 2), axis=1)[:, ::-1] for edges in lists]
    edges = np.concatenate([NO_LINKS, *parts])
    expected = roots_by_union_find(edges)
    assert dict(smallest_reachable(edges).tolist()) == expected
    assert roots_by_rounds(parts, partitions, rounds)[0] == {
        vertex: root for vertex, root in expected.items() if vertex != root
    }


def shuffled_path(length: int) -> np.ndarray:
    names = np.random.default_rng(1).permutation(length).astype(np.uint64)
    return np.stack([np.maximum(names[1:], names[:-1]), np.minimum(names[1:], names[:-1])], axis=1)


def test_long_paths_become_stars_in_few_rounds():
    edges = shuffled_path(4096)
    in_memory = [roots_by_rounds([edges], 7, rounds)[1] for rounds in (0, 4, 8)]
    assert in_memory[0] > 4000 and in_memory[1] < 500 and in_memory[2] < 10


def test_a_vertex_with_many_neighbours_needs_no_more_memory_than_others():
    star = np.stack([np.arange(1, 50_001), np.zeros(50_000)], axis=1).astype(np.uint64)
    result, in_memory = roots_by_rounds([star], 16, 1)
    assert set(result.values()) == {0} and len(result) == 50_000 and in_memory == 0


def test_a_million_edges_in_memory_are_resolved_in_few_passes():
    reachable = smallest_reachable(shuffled_path(300_000))
    assert (reachable[:, 1] == 0).all() and len(reachable) == 300_000


def test_links_are_distributed_once_each():
    links = np.array([[1, 2], [1, 2], [3, 2]], np.uint64)
    parts = [links_from(data).tolist() for _, data in by_partition(links, 1)]
    assert parts == [[[1, 2], [3, 2]]]
    assert list(by_partition(NO_LINKS, 3)) == []
    assert len({key for key, _ in by_partition(np.arange(200, dtype=np.uint64).reshape(-1, 2), 8)}) == 8


@pytest.mark.parametrize("rounds", [0, 1])
def test_no_edges_are_no_components(rounds):
    assert roots_by_rounds([], 2, rounds) == ({}, 0)
