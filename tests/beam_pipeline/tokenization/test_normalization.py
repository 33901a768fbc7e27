"""Normalizers outside of the tokenizer do exactly what they do inside of it."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from tokenizers import normalizers

from beam_pipeline.tokenization import local_normalization, normalization
from beam_pipeline.tokenization.characters import CODES, CharacterSet
from beam_pipeline.tokenization.normalization import (
    build_normalizer,
    cut,
    differing_characters,
    last_match,
    steps,
)

PARTS = [
    *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
    {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    {"type": "Replace", "pattern": {"Regex": normalization.FOLD_SPACE}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    | {"lowercase": True},
]


def normalize(part: dict | None, texts: list[str]) -> list[str]:
    for step in steps(part):
        texts = step(texts)
    return texts


@pytest.mark.parametrize("part", PARTS, ids=lambda part: json.dumps(part)[:60])
def test_each_component(part: dict, hard_texts: list[str]):
    hf_normalizer = build_normalizer(part)
    texts = [*hard_texts, *(chr(code) for code in range(0x250)), *map(chr, range(0x1FF0, 0x2070))]
    for text, actual in zip(texts, normalize(part, texts), strict=True):
        assert actual == hf_normalizer.normalize_str(text), repr(text)


def test_sentencepieces_rules(
    make_tokenizer: Callable[[str], str], hard_texts: list[str], hostile_texts: list[str]
):
    part = json.loads(make_tokenizer("unigram-mt5"))["normalizer"]
    assert part["type"] == "Precompiled"
    hf_normalizer = build_normalizer(part)
    texts = [
        *hard_texts,
        *hostile_texts,
        *(f"e{chr(code)}\u0301 x\n{chr(code)}" for code in range(0x20, 0x3100)),
    ]
    for text, actual in zip(texts, normalize(part, texts), strict=True):
        assert actual == hf_normalizer.normalize_str(text), repr(text)


def test_characters_that_are_never_touched_form_no_graphemes(make_tokenizer: Callable[[str], str]):
    """Each beside letters, marks and other such characters."""
    hf_normalizer = build_normalizer(json.loads(make_tokenizer("unigram-mt5"))["normalizer"])
    kept_chars = [char for char in map(chr, range(0x20000)) if local_normalization.keeps(hf_normalizer, char)]
    assert {"a", " ", "é", "я", "漢", "한", "👍"} <= set(kept_chars)
    rng = random.Random(0)
    text = "".join(rng.choices(kept_chars, k=200_000)) + "".join(kept_chars)
    assert hf_normalizer.normalize_str(text) == text


def test_a_sequence_is_one_component_after_the_other(hard_texts: list[str]):
    part = {"type": "Sequence", "normalizers": [PARTS[2], {"type": "Sequence", "normalizers": PARTS[9:13]}]}
    hf_normalizer = build_normalizer(part)
    assert normalize(part, hard_texts) == [hf_normalizer.normalize_str(text) for text in hard_texts]
    assert normalize(None, hard_texts) == hard_texts


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_unicode_versions_that_disagree_are_known(form: str):
    """Finds every code point, alone and among marks, on which Python and `tokenizers` disagree."""
    hf_normalizer = getattr(normalizers, form)()
    known_differences = differing_characters(form)
    for context in ("{}", "e\u0323{}\u0301", "{0}\u0316{0}"):
        texts = [context.format(chr(code)) for code in range(0x80, 0x20000) if not 0xD800 <= code < 0xE000]
        actual = unicodedata.normalize(form, "\n".join(texts)).split("\n")
        expected = hf_normalizer.normalize_str("\n".join(texts)).split("\n")
        differences = {
            number for number, pair in enumerate(zip(actual, expected, strict=True)) if pair[0] != pair[1]
        }
        assert differences <= set(known_differences.positions(texts))


def test_the_class_of_white_space_is_that_of_python():
    codes = [chr(code) for code in range(CODES)]
    assert sorted(normalization.PYTHON_SPACE) == [char for char in codes if char.isspace()]
    assert sorted(normalization.PYTHON_SPACE) == [char for char in codes if re.match(r"\s", char)]


@given(text=strategies.text(alphabet=[*normalization.PYTHON_SPACE, "a", "b", "\0", "\u200b"], max_size=8))
@settings(max_examples=500, deadline=None)
def test_every_run_of_white_space_becomes_one_space(text: str):
    part = {"type": "Replace", "pattern": {"Regex": normalization.FOLD_SPACE}, "content": " "}
    assert normalize(part, [text]) == [re.sub(normalization.FOLD_SPACE, " ", text)]


def test_long_texts_go_through_a_component_in_pieces(monkeypatch: pytest.MonkeyPatch, hard_texts: list[str]):
    monkeypatch.setattr(normalization, "LONGEST_WORD", 100)
    text = " and".join(hard_texts)[:20_000]
    hf_normalizer = build_normalizer({"type": "Nmt"})
    assert normalize({"type": "Nmt"}, [text]) == [hf_normalizer.normalize_str(text)]


@given(
    text=strategies.text(alphabet="ab ", max_size=200),
    max_chars=strategies.integers(1, 40),
    longest=strategies.integers(40, 60),
)
@settings(deadline=None)
def test_cut(text: str, max_chars: int, longest: int):
    before, normalization.LONGEST_WORD = normalization.LONGEST_WORD, longest
    try:
        places = re.compile("(?= )")
        pieces = cut(text, places, max_chars)
        assert "".join(pieces) == text and all(pieces)
        for piece, after in pairwise(pieces):
            assert len(piece) <= longest
            if not after.startswith(" "):  # cut within a word, which only happens if the word is too long
                assert len(piece) == longest
            elif len(piece) > max_chars:  # then there was no match to cut it at
                assert " " not in piece[1:]
        # Words that are too long are cut at the same positions, whatever the limit for pieces is.
        longest_pieces = cut(text, places, longest)
        ends_by_limit = [
            set(np.cumsum([len(piece) for piece in each]).tolist()) for each in (pieces, longest_pieces)
        ]
        assert {end for end in ends_by_limit[0] if text[end : end + 1] not in ("", " ")} == {
            end for end in ends_by_limit[1] if text[end : end + 1] not in ("", " ")
        }
    finally:
        normalization.LONGEST_WORD = before


@given(text=strategies.text(alphabet="ab ▁", max_size=600), data=strategies.data())
def test_last_match(text: str, data: strategies.DataObject):
    places = re.compile("(?<=[ab])(?= [ab])|(?<=[^▁])(?=▁[^▁])")
    end = data.draw(strategies.integers(0, len(text)))
    start = data.draw(strategies.integers(0, end))
    result = [match.start() for match in places.finditer(text) if start <= match.start() <= end]
    assert last_match(places, text, start, end) == (result[-1] if result else None)


@given(texts=strategies.lists(strategies.text(alphabet="abé漢\x00", max_size=8), max_size=8))
def test_character_set(texts: list[str]):
    for chars in ("", "é", "漢", "\x00b", "aé"):
        expected = {
            number: [place for place, char in enumerate(text) if char in chars]
            for number, text in enumerate(texts)
            if set(text) & set(chars)
        }
        assert CharacterSet.containing(chars).positions(texts) == expected
