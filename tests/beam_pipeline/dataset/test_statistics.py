import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.statistics import LENGTH_EDGES, SplitStatistics, entropy
from beam_pipeline.engines.token_arrays import with_targets
from beam_pipeline.rows.blocks import RowBlock, rows_checksum

VOCAB_SIZE = 50
LENGTHS = st.one_of(st.integers(0, 40), st.integers(65530, 65545), st.integers(2**20, 2**33))


def documents(lengths: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens = np.array([length % 41 for length in lengths], np.int64)
    ids = np.arange(int(tokens.sum())) % VOCAB_SIZE
    return ids.astype(np.uint16), tokens, np.array(lengths, np.int64)


@given(st.lists(LENGTHS, min_size=1, max_size=50))
def test_histograms_count_each_document_in_the_bin_that_holds_its_length(lengths):
    statistics = SplitStatistics.empty(VOCAB_SIZE)
    ids, tokens, sizes = documents(lengths)
    statistics.add_documents(ids, tokens, sizes)
    data = statistics.to_json()
    for name, values in (("document_bytes", sizes), ("document_tokens", tokens)):
        edges, counts = data[name]["edges"], data[name]["counts"]
        assert len(edges) == len(counts) + 1
        assert counts == np.histogram(values, [*edges[:-1], edges[-1] - 0.5])[0].tolist()
        assert data[name]["max"] == values.max()
        assert data[name]["mean"] == pytest.approx(values.mean())
    assert data["token_counts"] == np.bincount(ids, minlength=VOCAB_SIZE).tolist()


def test_bytes_per_token_in_quarter_bytes_and_the_last_bin_holds_all_above():
    statistics = SplitStatistics.empty(VOCAB_SIZE)
    tokens = np.array([4, 4, 4, 1, 1, 0], np.int64)
    sizes = np.array([0, 1, 15, 16, 1000, 7], np.int64)
    statistics.add_documents(np.zeros(14, np.uint16), tokens, sizes)
    ratios = statistics.to_json()["document_bytes_per_token"]
    count_by_edge = {ratios["edges"][i]: count for i, count in enumerate(ratios["counts"]) if count}
    assert count_by_edge == {0.0: 1, 0.25: 1, 3.75: 1, 16.0: 2}  # the document without tokens is left out


def test_rows_by_their_fill():
    statistics = SplitStatistics.empty(VOCAB_SIZE)
    ids = np.zeros((4, 40), np.uint16)
    block = RowBlock(ids, np.array([1, 2, 3, 40], np.uint32))
    statistics.add_rows(block)
    fill = statistics.to_json()["row_fill"]
    assert [(fill["edges"][i + 1], count) for i, count in enumerate(fill["counts"]) if count] == [
        (0.05, 2),
        (0.1, 1),
        (1.0, 1),
    ]
    assert (statistics.rows, statistics.padding) == (4, 4 * 40 - 46)
    assert statistics.rows_checksum == rows_checksum(ids, block.lengths)


def test_turns_and_targets_of_conversations():
    statistics = SplitStatistics.empty(VOCAB_SIZE)
    is_target = np.array([0, 1, 1, 0, 1, 1, 1, 0], bool)  # two turns, one that goes on to the end, and one
    ids = with_targets(np.zeros(8, np.uint16), is_target)
    statistics.add_documents(ids, np.array([5, 1, 0, 2], np.int64), np.ones(4, np.int64))
    statistics.add_rows(RowBlock(ids.reshape(2, 4), np.array([4, 4], np.uint32)))
    recorded = statistics.to_json()
    turns, targets = recorded["document_turns"], recorded["row_targets"]
    assert turns["edges"] == [0, 2, 3] and turns["counts"] == [3, 1]
    assert [(targets["edges"][i + 1], count) for i, count in enumerate(targets["counts"]) if count] == [
        (0.5, 1),
        (0.75, 1),
    ]
    assert recorded["targets"] == 5


def test_parts_add_up_to_the_whole():
    lengths = [0, 1, 5, 70000, 3, 2**31]
    block = RowBlock(np.arange(32, dtype=np.uint16).reshape(4, 8), np.array([8, 8, 8, 3], np.uint32))
    total = SplitStatistics.empty(VOCAB_SIZE)
    total.add_documents(*documents(lengths))
    total.add_rows(block)
    first, second = SplitStatistics.empty(VOCAB_SIZE), SplitStatistics.empty(VOCAB_SIZE)
    split = sum(length % 41 for length in lengths[:2])
    ids, tokens, sizes = documents(lengths)
    first.add_documents(ids[:split], tokens[:2], sizes[:2])
    second.add_documents(ids[split:], tokens[2:], sizes[2:])
    first.add_rows(block.take(slice(0, 1)))
    second.add_rows(block.take(slice(1, 4)))
    merged = SplitStatistics.empty(VOCAB_SIZE).merge(pickle.loads(pickle.dumps(second))).merge(first)
    assert merged.to_json() == total.to_json()
    assert merged.rows_checksum == total.rows_checksum < 2**64


def test_entropy_is_that_of_the_distribution():
    assert entropy(np.array([0, 0])) == 0.0
    assert entropy(np.array([7, 0, 0])) == pytest.approx(0)
    assert entropy(np.array([5, 5, 5, 5, 0])) == pytest.approx(math.log(4))


def test_edges_are_four_to_the_octave():
    assert LENGTH_EDGES[0] == 1 and LENGTH_EDGES[-1] == 2**40
    assert (np.diff(LENGTH_EDGES) > 0).all()
    assert set(2 ** np.arange(41)) <= set(LENGTH_EDGES.tolist())
