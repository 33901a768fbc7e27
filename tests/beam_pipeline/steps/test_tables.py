"""The tables of all units and of the places of their rows: no row may be missing or occur twice."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.finished_units import BlockPlace
from beam_pipeline.dataset.sections import Section
from beam_pipeline.rows.routing import RowTable
from beam_pipeline.steps.tables import (
    UnitCounts,
    build_block_table,
    build_kept_table,
    build_row_table,
    build_tail_table,
)


def test_a_lost_or_doubled_unit_is_an_error():
    first, second, third = (UnitCounts(unit, (3,), (5,)) for unit in range(3))
    with pytest.raises(AssertionError, match="work unit 1 was counted 0 times"):
        build_tail_table([first, third], num_units=3, num_splits=1)
    with pytest.raises(AssertionError, match="work unit 0 was counted 2 times"):
        build_tail_table([first, first, second], num_units=2, num_splits=1)


def test_rows_of_tails_come_after_those_of_all_units():
    counts = [UnitCounts(1, (4, 0), (7, 0)), UnitCounts(0, (3, 2), (6, 0))]
    tails = build_tail_table(counts, num_units=2, num_splits=2)
    assert tails.sizes.tolist() == [[6, 0], [7, 0]]
    table = build_row_table(counts, tails, num_units=2, num_splits=2, max_length=8)
    assert table.rows.tolist() == [[3, 2], [4, 0], [2, 0]]  # 13 tokens make 2 rows


def places_of(rows: list[list[list[int]]]) -> tuple[RowTable, list[BlockPlace]]:
    """Returns the row table and the blocks, given the number of rows of each block, by unit and split."""
    places = []
    for unit, splits in enumerate(rows):
        for split, counts in enumerate(splits):
            for number, count in enumerate(counts):
                section = Section(unit, split, number)
                places.append(BlockPlace(split, unit, sum(counts[:number]), count, section))
    return RowTable(np.array([[sum(counts) for counts in splits] for splits in rows])), places


blocks_of_a_split = st.lists(st.integers(1, 9), max_size=4)
units = st.lists(st.tuples(blocks_of_a_split, blocks_of_a_split).map(list), min_size=1, max_size=6)


@given(units, st.randoms(use_true_random=False))
def test_every_row_is_found_in_its_block(rows, order):
    table, places = places_of(rows)
    order.shuffle(places)
    blocks = pickle.loads(pickle.dumps(build_block_table(places, table)))
    for split, total in enumerate(table.totals.tolist()):
        if not total:
            continue
        ranks = np.array(order.sample(range(total), k=total))
        ranks_found = []
        for place, rank_indices, numbers in blocks.find(split, ranks):
            assert place in places and place.split == split
            first = table.first_rank(place.unit, split) + place.first_row
            assert (numbers < place.rows).all() and np.array_equal(first + numbers, ranks[rank_indices])
            ranks_found += rank_indices.tolist()
        assert sorted(ranks_found) == list(range(total))


def test_a_lost_or_doubled_block_is_an_error():
    table, places = places_of([[[4, 2]], [[3]]])
    for wrong_places in (places[1:], places[:1] + places[2:], places[:-1], [*places, places[0]], []):
        with pytest.raises(AssertionError, match="do not contain each of its 9 rows once"):
            build_block_table(wrong_places, table)


def test_kept_shards_are_listed_by_split():
    kept_shards = build_kept_table([(1, 7), (0, 3), (1, 2)])
    assert {split: shards.tolist() for split, shards in kept_shards.items()} == {0: [3], 1: [2, 7]}
