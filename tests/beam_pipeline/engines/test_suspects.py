"""The excerpts on which an engine is checked contain what is rare or unusual in a batch of documents."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from beam_pipeline.engines import suspects
from beam_pipeline.engines.suspects import find_suspects

PLAIN = [f"Document {number} has ordinary words, and a few more of them. " * 5 for number in range(300)]


@pytest.mark.parametrize(
    "unusual_text",
    [
        "\u1e9b",
        "𐍈",
        "Ａ",
        "аpple",
        "-" * 30,
        "_" * 7,
        "      ",
        "\n\n\n\n",
        "<|im_end|>",
        "[MASK]",
        "x" * 150,
    ],
)
def test_what_is_unusual_is_found(unusual_text: str):
    texts = PLAIN.copy()
    texts[217] = texts[217][:100] + unusual_text + texts[217][100:]
    result = find_suspects(texts)
    assert any(index == 217 and unusual_text[:60] in excerpt for index, excerpt in result)
    assert all(excerpt in texts[index] for index, excerpt in result)


def test_common_characters_do_not_hide_rare_ones():
    rng = random.Random(0)
    chinese = ["".join(rng.choices("的一是不了人我在有他这中大来上国", k=400)) for _ in range(50)]
    texts = [*chinese[:20], chinese[20] + "ॐ", *chinese[21:]]
    assert any("ॐ" in excerpt for _, excerpt in find_suspects(texts))


def test_the_longest_document_is_checked_beyond_its_beginning():
    texts = [*PLAIN, "word " * 50_000 + "end"]
    assert any(index == len(PLAIN) and excerpt.endswith("end") for index, excerpt in find_suspects(texts))


def test_the_excerpts_are_few_and_depend_only_on_the_batch():
    rng = random.Random(1)
    texts = ["".join(map(chr, rng.choices(range(0x20, 0x3000), k=500))) for _ in range(200)]
    result = find_suspects(texts)
    assert result == find_suspects(list(texts))
    assert sum(len(excerpt) for _, excerpt in result) < 20_000
    assert find_suspects([]) == [] and find_suspects([""]) == [(0, "")]


def test_long_words_and_runs_are_the_first_matches_of_patterns():
    rng = random.Random(2)
    long_word, run = re.compile(r"\S{100,}"), re.compile(r"([^A-Za-z0-9\n])\1{5,}")
    for alphabet in ("a-=\n ", "aA0_\n", "\u2003\u3000\u2028\x85\xa0\x1c\u200bx", "é日\U0001f600- "):
        for _ in range(500):
            lengths = rng.choices([1, 5, 6, 7, 99, 100, 101], k=rng.choice([0, 1, 5, 20]))
            text = "".join(rng.choice(alphabet) * length for length in lengths)
            for pattern, spans in ((long_word, suspects._long_words), (run, suspects._runs)):
                expected = [match.span() for match in islice(pattern.finditer(text), 2)]
                assert list(spans(suspects._codes(text))) == expected, (text, pattern)
