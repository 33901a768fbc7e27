from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation import candidates
from beam_pipeline.curation.candidates import (
    ENTRY,
    MOST_SENT,
    WINDOW,
    divide_bands,
    document_ids,
    documents_of,
    group_starts,
    propose,
    propose_in_bucket,
    units_of,
)


def bucket(units: list[tuple[int, list[tuple[int, int]]]]) -> tuple[np.ndarray, np.ndarray]:
    entries = np.array([entry for _, entries in units for entry in entries], ENTRY)
    return np.repeat([unit for unit, _ in units], [len(entries) for _, entries in units]), entries


def pairs_of(proposed: candidates.Proposed) -> set[tuple[int, int]]:
    assert all(later > earlier for later, earlier in proposed.pairs.tolist())
    return set(map(tuple, proposed.pairs.tolist()))


entries = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), unique=True, max_size=6)


@given(st.lists(st.tuples(st.integers(0, 2**31), entries), unique_by=lambda unit: unit[0], max_size=2))
def test_all_pairs_of_small_groups_are_compared(units):
    proposed = propose_in_bucket(*bucket(units))
    expected = set()
    ids = [(key, (unit << 32) + document) for unit, entries in units for key, document in entries]
    for (key, one), (other_key, other) in combinations(ids, 2):
        if key == other_key:
            expected.add((max(one, other), min(one, other)))
    assert pairs_of(proposed) == expected and proposed.skipped == 0


def connected(pairs: set[tuple[int, int]], ids: list[int]) -> bool:
    reached = {ids[0]}
    for later, earlier in sorted(pairs):
        assert later in ids and earlier in ids
        if earlier in reached:
            reached.add(later)
    return reached == set(ids)


def test_large_groups_are_connected_by_few_pairs_which_do_not_depend_on_the_order_of_units():
    units = [(unit, [(5, document) for document in range(50)]) for unit in range(20)]
    proposed = propose_in_bucket(*bucket(units))
    pairs = pairs_of(proposed)
    assert len(proposed.pairs) <= 1000 * (WINDOW + 2)
    assert connected(pairs, [(unit << 32) + document for unit, entries in units for _, document in entries])
    assert pairs == pairs_of(propose_in_bucket(*bucket(units[::-1])))
    compared = 1000 * WINDOW - WINDOW * (WINDOW + 1) // 2 + 1000 - WINDOW - 1
    assert proposed.skipped == 1000 * 999 // 2 - compared


def test_a_band_of_many_documents_of_a_unit_sends_few_entries():
    bands = np.full((1000, 2), 9, np.uint64)
    bands[:, 1] = 1 << 40 | np.arange(1000)
    divided = divide_bands(3, bands, np.arange(1000))
    assert len(divided.entries) == MOST_SENT + 1000
    within = pairs_of(propose_in_bucket(np.full(len(divided.entries), 3), divided.entries))
    ids = [(3 << 32) + document for document in range(1000)]
    assert connected(within | pairs_of(divided.proposed), ids)
    assert len(divided.proposed.pairs) <= 1000 * (WINDOW + 2)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_documents_of_a_unit_are_all_compared_if_their_groups_are_small(bands):
    divided = divide_bands(1, np.array(bands, np.uint64)[:, None], np.arange(len(bands)) * 2)
    within = pairs_of(propose_in_bucket(np.full(len(divided.entries), 1), divided.entries))
    pairs = within | pairs_of(divided.proposed)
    for one, other in combinations(range(len(bands)), 2):
        if bands[one] == bands[other] and other - one <= WINDOW:
            assert ((1 << 32) + 2 * other, (1 << 32) + 2 * one) in pairs


def test_ids_are_ordered_by_unit_then_by_document():
    ids = document_ids(2**31, np.array([0, 5, 2**32 - 1]))
    assert units_of(ids).tolist() == [2**31] * 3 and documents_of(ids).tolist() == [0, 5, 2**32 - 1]
    assert document_ids(1, np.array([0]))[0] > document_ids(0, np.array([2**32 - 1]))[0]


def test_nothing_is_proposed_without_documents():
    assert propose(np.empty(0, np.uint64), group_starts(np.empty(0, np.uint64))).pairs.shape == (0, 2)
    assert divide_bands(0, np.empty((0, 3), np.uint64), np.empty(0, np.int64)).entries.shape == (0,)
