import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.curation.normalize import normalize_texts, normalize_words


def words(text: str) -> list[str]:
    return normalize_texts([text]).decode().split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's  THE\n“ﬁrst”,\tyes_no.", ["it", "s", "the", "first", "yes", "no"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("Ａ１ ½ ﷺ", ["a1", "1", "2", "صلى", "الله", "عليه", "وسلم"]),
        ("e\u0301t\u00e9 \u0939\u093f\u0928\u094d\u0926\u0940", ["été", "हिन्दी"]),
        ("´a\u00adb™ \ud800c", ["a", "b", "c"]),
        ("?! …", []),
        ("", []),
    ],
)
def test_words_have_no_case_punctuation_or_variants_of_characters(text, expected):
    assert words(text) == expected
    assert normalize_words(text).words == expected


characters = st.one_of(st.characters(), st.sampled_from("aA .\n½ﷺŀß\u0301\u0345²ſ´"))


@given(st.lists(st.text(characters, max_size=12), max_size=5))
def test_many_texts_give_the_words_of_each_in_a_line(texts):
    lines = normalize_texts(texts).decode().split("\n")
    assert lines.pop() == ""
    assert [line.split(" ") for line in lines] == [
        normalize_texts([text]).decode()[:-1].split(" ") for text in texts
    ]
    assert [line.split() for line in lines] == [normalize_words(text).words for text in texts]


@given(st.text(characters, max_size=20))
def test_forms_of_the_same_text_are_equal(text):
    assert words(unicodedata.normalize("NFD", text)) == words(unicodedata.normalize("NFC", text))
    if text.isascii():
        assert words(text.upper()) == words(text.lower())


@given(st.text(characters, max_size=20))
def test_a_span_is_the_word_in_the_text(text):
    result = normalize_words(text)
    for word, (start, end) in zip(result.words, result.spans.tolist(), strict=True):
        assert word in normalize_words(text[start:end]).words
        assert start < end <= len(text)
    assert (result.spans[1:, 0] >= result.spans[:-1, 0]).all()


def test_folding_case_makes_no_separators():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "LMN":
            assert all(unicodedata.category(character)[0] in "LMN" for character in chr(code).casefold())
