"""Texts in one buffer, which are strings to Python code."""

import numpy as np
import pytest

from beam_pipeline.support.texts import READ_BEYOND, Texts, contents

STRINGS = ["", "tea", " \n", "thé 字", "\u3000", "\x1c\x85", "a ", "\U0001f600", "\u2028x", " " * 40 + "é"]


def test_they_are_a_sequence_of_strings() -> None:
    texts = Texts.of(STRINGS)
    assert list(texts) == STRINGS and len(texts) == len(STRINGS)
    assert [texts[index] for index in range(-len(STRINGS), 0)] == STRINGS and texts[1:3] == STRINGS[1:3]
    assert Texts.of(texts) is texts
    fresh = Texts.of(STRINGS)
    assert [fresh[index] for index in range(len(STRINGS))] == STRINGS  # before all of them are decoded
    assert texts.sizes.tolist() == [len(text.encode()) for text in STRINGS]
    assert list(contents(texts)) == list(contents(STRINGS)) == [text.encode() for text in STRINGS]
    with pytest.raises(IndexError):
        fresh[len(STRINGS)]


def test_parts_of_others_are_not_copied() -> None:
    texts = Texts.of(STRINGS)
    taken = texts.take([3, 3, 0])
    assert list(taken) == ["thé 字", "thé 字", ""] and np.shares_memory(taken.data, texts.data)
    joined = Texts.join([taken, Texts.of([]), Texts.of(["end"])])
    assert list(joined) == ["thé 字", "thé 字", "", "end"]
    assert len(joined.data) - int(joined.ends.max()) >= READ_BEYOND
    # Texts may be anywhere in the buffer, in any order.
    texts = Texts(b"one two" + bytes(READ_BEYOND), np.array([4, 0]), np.array([7, 3]))
    assert list(texts) == ["two", "one"]


def test_blank_texts_are_those_of_python() -> None:
    characters = [chr(code) for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    for strings in (STRINGS, characters, ["\n" + char + " " for char in characters]):
        blank = [not text or text.isspace() for text in strings]
        assert Texts.of(strings).are_blank().tolist() == blank
    assert Texts.of([]).are_blank().tolist() == []
