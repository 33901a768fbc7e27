import json
import re

import numpy as np
import pytest

from beam_pipeline.curation.removals import Removals


def removals(rule: str, *documents: int) -> Removals:
    return Removals.of_rule(
        rule, np.array(documents), np.arange(len(documents)) / 4, [{"n": d} for d in documents]
    )


def test_removals_are_ordered_and_equal_ones_are_equal_bytes():
    first, second = removals("near", 9, 2), removals("c4", 2, 5)
    joined = Removals.concat([first, second])
    assert joined.to_bytes() == Removals.concat([second, first]).to_bytes()
    rows = Removals.from_bytes(joined.to_bytes()).table.to_pylist()
    assert [(row["document"], row["rule"], row["value"]) for row in rows] == [
        *[(2, "c4", 0.0), (2, "near", 0.25), (5, "c4", 0.25), (9, "near", 0.0)]
    ]
    assert [json.loads(row["evidence"]) for row in rows] == [{"n": 2}, {"n": 2}, {"n": 5}, {"n": 9}]


def test_a_document_is_counted_once_under_all_its_rules():
    joined = Removals.concat([removals("near", 9, 2), removals("c4", 2, 5), removals("c4", 2)])
    assert joined.counts() == {"c4": 1, "c4+near": 1, "near": 1}
    assert joined.documents.tolist() == [2, 5, 9]


def test_parts_are_selected_by_document():
    joined = Removals.concat([removals("near", 9, 2), removals("c4", 2, 5)])
    assert joined.between(5, 9).documents.tolist() == [5]
    assert joined.without(np.array([2])).counts() == {"c4": 1, "near": 1}
    assert joined.shifted(100).documents.tolist() == [102, 105, 109]
    assert Removals.from_bytes(Removals.empty().to_bytes()).counts() == {}


def test_a_name_that_would_make_combinations_ambiguous_is_refused():
    with pytest.raises(ValueError, match=re.escape("'a+b' is not the name of a rule")):
        removals("a+b", 1)
