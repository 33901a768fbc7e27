"""Matches and decisions, compared with sets of n-grams as Python has them."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation import contamination, ngram_index
from beam_pipeline.curation.contamination import (
    Decider,
    Findings,
    cut,
    documents_with,
    find_matches,
)
from beam_pipeline.curation.ngram_index import NgramIndex, build_index
from beam_pipeline.curation.normalize import normalize_words
from beam_pipeline.curation.shingles import shingles_in_order
from tests.beam_pipeline.conftest import WIKITEXT

NO_COMMON = np.empty(0, np.int64)
WORDS = st.sampled_from(["a", "b", "c", "dé", "日本", "ﬁ"])
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)


def words_of(text: str) -> list[str]:
    """Returns normalized words, of which Chinese and Japanese characters are each one."""
    words = " ".join(normalize_words(text).words)
    return re.sub("([日本])", r" \1 ", words).split()


def ngrams_of(text: str, n: int, min_words: int) -> set[str]:
    words = words_of(text)
    size = n if len(words) >= n else len(words)
    if size < min_words:
        return set()
    return {" ".join(words[first : first + size]) for first in range(len(words) - size + 1)}


def matched(index: NgramIndex, texts: list[str]) -> set[tuple[int, str]]:
    matches = find_matches(texts, index, with_places=False)
    return {
        (document, index.text_of(ngram).decode())
        for document, ngram in matches[["document", "ngram"]].tolist()
    }


def expected_matches(items: list[str], texts: list[str], n: int, min_words: int) -> set[tuple[int, str]]:
    ngrams = set().union(*(ngrams_of(item, n, min_words) for item in items))
    padded = [f" {' '.join(words_of(text))} " for text in texts]
    return {
        (document, ngram) for document, text in enumerate(padded) for ngram in ngrams if f" {ngram} " in text
    }


@given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(TEXTS, max_size=5), st.integers(1, 4), st.data())
def test_all_ngrams_of_items_are_found_and_no_others(items, texts, n, data):
    min_words = data.draw(st.integers(1, n))
    index = build_index(["b"], [[(item,) for item in items]], n=n, min_words=min_words)
    assert matched(index, texts) == expected_matches(items, texts, n, min_words)
    copied = NgramIndex.from_bytes(index.to_bytes())
    assert copied.to_bytes() == index.to_bytes()
    assert matched(copied, texts) == matched(index, texts)


@given(st.lists(TEXTS, min_size=1, max_size=5), st.lists(TEXTS, max_size=5))
def test_colliding_hashes_match_by_text_only(items, texts):
    def colliding(*args):
        hashes, counts = shingles_in_order(*args)
        return hashes & np.uint64(1), counts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contamination, "shingles_in_order", colliding)
        patch.setattr(ngram_index, "shingles_in_order", colliding)
        index = build_index(["b"], [[(item,) for item in items]], n=3, min_words=2)
        assert len(set(index.hashes.tolist())) <= 2
        assert matched(index, texts) == expected_matches(items, texts, 3, 2)


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_places_are_those_of_the_words(items, text):
    index = build_index(["b"], [[(item,) for item in items]], n=3, min_words=2)
    for match in find_matches([text], index, with_places=True):
        passage = text[match["start"] : match["end"]]
        # A character of a word that NFKC changes may take its neighbours with it.
        assert index.text_of(match["ngram"]).decode() in " ".join(words_of(passage))


def decide(items: list[tuple[str, ...]], texts: list[str], *, common=NO_COMMON, min_share=0.5, **options):
    index = build_index(["b.jsonl"], [items], n=3, min_words=2)
    matches = find_matches(texts, index, with_places=True)
    return index, Decider(index, common, min_share=min_share, **options).decide(matches)


def test_the_share_of_an_items_ngrams_decides():
    item = "one two three four five six"  # four 3-grams
    texts = ["one two three four", "ONE, two;\nthree  four five!", "one two three", "six five four", item]
    _, decisions = decide([(item,)], texts)
    table = decisions.removals.table.to_pylist()
    assert [(row["document"], row["value"]) for row in table] == [(0, 0.5), (1, 0.75), (4, 1.0)]
    assert json.loads(table[1]["evidence"]) == {
        "benchmark": "b.jsonl",
        "item": 0,
        "ngram": "one two three",
        "items": 1,
    }
    assert decisions.findings.shares.tolist() == [[0, 0, 1, 0, 0, 1, 0, 1, 0, 1]]
    assert decisions.findings.documents.tolist() == [3]
    assert decide([(item,)], texts, min_share=0)[1].removals.documents.tolist() == [0, 1, 2, 4]
    assert decide([(item,)], texts, min_share=1)[1].removals.documents.tolist() == [4]


def test_all_fields_must_be_in_a_document_and_short_ones_count_beside_others():
    items = [("what is six times seven", "42"), ("what is two and two", "four it is")]
    texts = [
        "What is six times seven? The answer is 42.",
        "What is six times seven? The answer is 421.",
        "The answer is 42.",
        "what is two and two ... four it is",
        "What is two and two?",
    ]
    assert decide(items, texts)[1].removals.documents.tolist() == [0, 3]
    questions = [(question,) for question, _ in items]
    assert decide(questions, texts)[1].removals.documents.tolist() == [0, 1, 3, 4]


def test_items_without_enough_words_or_with_an_empty_field_cannot_be_checked():
    index, decisions = decide([("one",), ("",), ("one two",)], ["one", "one two"])
    assert index.checkable.tolist() == [False, False, True]
    assert decisions.removals.documents.tolist() == [1]
    index, decisions = decide([("one two three", ""), ("one two three", "x")], ["one two three x"])
    assert index.checkable.tolist() == [False, True]
    assert [json.loads(text)["item"] for text in decisions.removals.table["evidence"].to_pylist()] == [1]


def test_common_ngrams_are_no_evidence_and_items_of_them_are_public():
    items = [("all rights are reserved by us",), ("all rights are mine and yours today",)]
    texts = ["all rights are reserved by us", "all rights are bad", "all rights are mine and yours"]
    index = build_index(["b"], [items], n=3, min_words=2)
    matches = find_matches(texts, index, with_places=False)
    ngrams, counts = documents_with(matches)
    by_text = {index.text_of(ngram).decode(): count for ngram, count in zip(ngrams, counts, strict=True)}
    assert by_text["all rights are"] == 3 and by_text["are mine and"] == 1
    shared = ngrams[counts > 2]
    decisions = Decider(index, shared, min_share=0.5).decide(matches)
    # The first item keeps three of four n-grams, the second four of five, of which the last document has three.
    assert decisions.removals.documents.tolist() == [0, 2]
    assert decisions.removals.table["value"].to_pylist() == [1.0, 0.75]
    most = np.array(
        [n for n in range(len(index)) if b"rights" in index.text_of(n) or b"reserved" in index.text_of(n)]
    )
    decider = Decider(index, most, min_share=0.5)
    assert decider.is_public.tolist() == [True, False]
    assert decider.decide(matches).removals.documents.tolist() == [2]


def test_passages_are_merged_and_cut():
    item = ("one two three four five",)
    texts = ["zero One, two: three four; six. one two three four five.", "x one two three four y one two x"]
    _, decisions = decide([item], texts, cuts_passages=True)
    passages = [json.loads(text)["passages"] for text in decisions.removals.table["evidence"].to_pylist()]
    assert [cut(text, spans) for text, spans in zip(texts, passages, strict=True)] == [
        "zero ; six. .",
        "x  y one two x",
    ]


def test_findings_add_up():
    item = "one two three four five six"
    texts = ["one two three four", "one two three four five", item]
    parts = [decide([(item,)], [text])[1].findings for text in texts]
    whole = decide([(item,)], texts)[1].findings
    total = sum(parts, Findings.none())
    assert total.items.tolist() == whole.items.tolist() == [0]
    assert total.item_documents.tolist() == whole.item_documents.tolist() == [3]
    assert (total.shares == whole.shares).all() and (total.documents == whole.documents).all()


@pytest.mark.skipif(not WIKITEXT.exists(), reason="needs the corpora beside the checkout")
def test_every_item_planted_in_real_text_is_found_and_none_in_text_without_items():
    lines = [line for line in WIKITEXT.read_text().splitlines() if len(line.split()) > 40]
    sources, documents = lines[:300], lines[300:900]
    items = [(" ".join(line.split()[3:38]),) for line in sources]
    index = build_index(["b"], [items], n=13, min_words=8)
    decider = Decider(index, NO_COMMON, min_share=0.5)
    untouched = decider.decide(find_matches(documents, index, with_places=False))
    assert len(untouched.removals) == 0
    rng = random.Random(0)
    edits = [
        str.upper,
        str.title,
        lambda text: text.replace(" ", "\n\t "),
        lambda text: re.sub(" ([,.;])", r"\1", text),
    ]
    edits += [
        lambda text: text.replace(" ", " — "),
        lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isalnum() and c.isascii() else c for c in text),
    ]
    planted = []
    for number, document in enumerate(documents[:300]):
        words = document.split(" ")
        place = rng.choice([0, rng.randrange(len(words)), len(words)])
        text = rng.choice(edits)(items[number][0])
        planted.append(" ".join([*words[:place], f"({text})", *words[place:]]))
    decisions = decider.decide(find_matches(planted + documents[300:], index, with_places=False))
    assert decisions.removals.documents.tolist() == list(range(300))
    evidence = [json.loads(text)["item"] for text in decisions.removals.table["evidence"].to_pylist()]
    assert evidence == list(range(300))
