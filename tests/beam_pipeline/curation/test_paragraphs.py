"""Repeated paragraphs of documents, compared with a reference in plain Python."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.curation.contamination import cut
from beam_pipeline.curation.paragraphs import DOCUMENT, HIT, OCCURRENCE, Splitter, decide
from beam_pipeline.curation.removals import ALL_PARAGRAPHS, PARAGRAPHS
from beam_pipeline.steps.paragraphs import FindRepeated, different
from tests.beam_pipeline.paragraph_reference import without_repeated

LINES = [
    "the cat sat",
    "THE “cat”, sat!",
    "dogs  run far",
    "Ｄogs run far\r",
    "Title",
    "",
    "  ",
    "\r",
    "---",
    "吾輩は猫",
    "x\u2028y z",
]
TEXTS = st.lists(st.sampled_from(LINES), min_size=1, max_size=7).map("\n".join).filter(str.strip)


def decided(units: list[list[str]], copies: int, min_words: int, *, of_blocks: bool) -> list[list[dict]]:
    """Returns the removals of each unit's documents, without Beam."""
    splitter = Splitter(min_words, of_blocks=of_blocks)
    stored, entries = [], []
    for unit, texts in enumerate(units):
        paragraphs = splitter.split(texts, np.arange(len(texts)))
        unit_entries, numbers = different(paragraphs.hashes, paragraphs.occurrences["document"])
        occurrences = paragraphs.occurrences.copy()
        occurrences["paragraph"] = numbers
        stored.append((occurrences, paragraphs.documents))
        entries.append((unit, unit_entries.tobytes()))
    finder = FindRepeated(copies, entries_per_pass=3)
    finder.setup()
    hits: dict[int, list[bytes]] = {}
    for unit, data in finder.process(((0, 0), entries[::-1])):
        hits.setdefault(unit, []).append(data)
    return [
        decide(*arrays, np.frombuffer(b"".join(hits.get(unit, [])[::-1]), HIT), unit).table.to_pylist()
        for unit, arrays in enumerate(stored)
    ]


def rest_of(units: list[list[str]], rows: list[list[dict]]) -> list[str | None]:
    """Returns all texts without what is removed."""
    results: list[str | None] = [text for texts in units for text in texts]
    first = 0
    for texts, removed in zip(units, rows, strict=True):
        for row in removed:
            place = first + row["document"]
            passages = json.loads(row["evidence"]).get("passages")
            assert (row["rule"] == ALL_PARAGRAPHS) == (passages is None)
            results[place] = passages and cut(results[place], passages)
            if passages:
                assert row["rule"] == PARAGRAPHS
                assert row["value"] == sum(end - start for start, end in passages) / len(
                    texts[row["document"]]
                )
        first += len(texts)
    return results


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=8),
    units=st.integers(1, 3),
    copies=st.integers(1, 3),
    min_words=st.integers(1, 4),
    of_blocks=st.booleans(),
)
def test_what_is_left_is_that_of_the_reference_in_any_units(texts, units, copies, min_words, of_blocks):
    size = -(-len(texts) // units)
    in_units = [texts[start : start + size] for start in range(0, len(texts), size)]
    rows = decided(in_units, copies, min_words, of_blocks=of_blocks)
    expected = without_repeated(texts, copies, min_words, of_blocks=of_blocks)
    assert rest_of(in_units, rows) == expected


def test_evidence_has_the_first_document_and_the_number_of_documents_of_each_passage():
    units = [
        ["the cat sat\nown words here", "a b c"],
        ["x y z\nthe cat sat\na b c\nTHE CAT SAT"],
        ["a, b, c\n\nThe cat sat"],
    ]
    rows = decided(units, 1, 3, of_blocks=False)
    assert rows[0] == []
    [second], [third] = rows[1], rows[2]
    assert json.loads(second["evidence"]) == {
        "passages": [[5, 18], [18, 24], [24, 35]],
        "copies": [[0, 0, 3], [0, 1, 3], [0, 0, 3]],
    }
    assert (third["rule"], third["value"]) == (ALL_PARAGRAPHS, 1.0)
    assert json.loads(third["evidence"]) == {"kept": [0, 1], "documents": 3, "paragraphs": 2}


def test_a_paragraph_of_every_document_is_one_entry_per_unit():
    hashes = np.repeat(np.array([[1, 2], [3, 4]], np.uint64), [1000, 1], axis=0)
    entries, numbers = different(hashes, np.arange(1001, dtype=np.uint32) // 2)
    assert entries[["paragraph", "documents", "first"]].tolist() == [(0, 500, 0), (1, 1, 500)]
    assert numbers.tolist() == [0] * 1000 + [1]


@pytest.mark.parametrize("texts", [[], ["???"], ["a"]])
def test_texts_without_long_paragraphs_have_none(texts):
    paragraphs = Splitter(2, of_blocks=False).split(texts, np.arange(len(texts)))
    assert paragraphs.occurrences.tolist() == [] and paragraphs.hashes.shape == (0, 2)
    assert paragraphs.documents["paragraphs"].tolist() == [1] * len(texts)
    assert len(decide(np.empty(0, OCCURRENCE), np.empty(0, DOCUMENT), np.empty(0, HIT), 0)) == 0
