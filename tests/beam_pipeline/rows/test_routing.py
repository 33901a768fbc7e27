import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.rows.routing import RowTable, ShardLayout

sizes = st.tuples(st.integers(1, 700), st.none()) | st.tuples(st.none(), st.integers(1, 3500))
layouts = st.builds(
    lambda size, **values: ShardLayout(split="train", shard_size=size[0], requested_shards=size[1], **values),
    size=sizes,
    num_rows=st.integers(0, 3000),
    shuffle=st.sampled_from(["global", "none"]),
    seed=st.integers(0, 5),
)


@given(layouts)
def test_every_slot_of_every_shard_gets_one_row(layout):
    ranks = np.arange(layout.num_rows)
    shards, slots = layout.place(ranks)
    counts = np.bincount(shards, minlength=layout.num_shards)
    assert counts.tolist() == [layout.records_in(shard) for shard in range(layout.num_shards)]
    if layout.shard_size:
        assert (counts[:-1] == layout.shard_size).all()
    assert len(set(zip(shards.tolist(), slots.tolist(), strict=True))) == layout.num_rows
    assert (slots < counts[shards]).all()
    assert np.array_equal(layout.rank(shards, slots), ranks)


@given(st.integers(0, 6000), st.integers(1, 5000))
def test_shards_by_number_are_just_as_many_and_of_even_sizes(num_rows, num_shards):
    layout = ShardLayout(
        split="train", num_rows=num_rows, shard_size=None, shuffle="none", seed=0, requested_shards=num_shards
    )
    assert layout.num_shards == min(num_shards, num_rows)
    counts = [layout.records_in(shard) for shard in range(layout.num_shards)]
    assert sum(counts) == num_rows
    assert counts == sorted(counts, reverse=True)
    assert not counts or 1 <= min(counts) >= max(counts) - 1
    assert layout.place(np.arange(num_rows))[0].tolist() == np.repeat(range(len(counts)), counts).tolist()


def test_without_shuffling_rows_stay_in_order():
    layout = ShardLayout("train", 10, 4, "none", 0)
    shards, slots = layout.place(np.arange(10))
    assert shards.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert slots.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_splits_and_seeds_are_shuffled_differently():
    places = [
        ShardLayout(split, 100, 10, "global", seed).place(np.arange(100))[0].tolist()
        for split, seed in [("train", 0), ("validation", 0), ("train", 1)]
    ]
    assert places[0] != places[1] != places[2] != places[0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=20))
def test_a_rank_leads_back_to_its_unit(rows):
    table = RowTable(np.array(rows))
    for split in range(2):
        ranks = [
            (unit, position, table.first_rank(unit, split) + position)
            for unit in range(len(rows))
            for position in range(rows[unit][split])
        ]
        assert [rank for _, _, rank in ranks] == list(range(int(table.totals[split])))
        assert [table.unit_of(rank, split) for _, _, rank in ranks] == [(u, p) for u, p, _ in ranks]


def test_tables_for_ten_terabytes():
    """320,000 units and three splits: the size of the table that every worker holds, and a look-up in it."""
    data = pickle.dumps(RowTable(np.full((320_001, 3), 5000, np.int64)))
    assert len(data) < 320_001 * 3 * 8 + 500
    table = pickle.loads(data)
    layout = ShardLayout("train", int(table.totals[0]), 50_000, "global", 0)
    shards, slots = layout.place(table.first_rank(319_999, 0) + np.arange(5000))
    assert shards.max() < layout.num_shards == -(-int(table.totals[0]) // 50_000)
    assert table.unit_of(int(layout.rank(shards[:1], slots[:1])[0]), 0) == (319_999, 0)
