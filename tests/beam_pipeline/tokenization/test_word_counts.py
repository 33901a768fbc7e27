"""Counted words: those that the pre-tokenizers of `tokenizers` cut out of a text."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from tokenizers import normalizers, pre_tokenizers

from beam_pipeline.tokenization.word_counts import LONGEST_WORD, UNIGRAM_WORDS, WordCounter, merge
from benchmarks.hostile_text import hard_text, hostile_text

CHARS = [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x110000))]
# White space of every definition, controls, marks that normalization reorders, signs, digits, and English contractions.
ATOMS = [
    *" \t\n\r\v\f\x1c\x1f\x85\xa0\u2003\u2028\u3000\u200b\ufeff\x00\ufffd'\"()中豈\u0301\u0327\u302eéİßΣς٣½²Ⅷ"
]
ATOMS += ["\U00020001", "\U0001d165", "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'r", "a", "1"]
CASES = [("bpe", False), ("unigram", False), ("wordpiece", False), ("wordpiece", True)]


@pytest.fixture(scope="module")
def nasty_texts() -> list[str]:
    rng = random.Random(5)
    texts = [
        "",
        *(hard_text(rng, 100) for _ in range(50)),
        *(hostile_text(rng, 40, ATOMS) for _ in range(300)),
    ]
    texts += ["".join(rng.choices(ATOMS, k=rng.randint(1, 40))) for _ in range(1000)]
    texts += ["".join(rng.choices(CHARS, k=200)) for _ in range(100)]
    return [*texts, *(f"a{char}b {char} 1{char}{char}\u0301 '{char}" for char in CHARS[::97])]


def expected(model: str, texts: list[str], lowercase: bool) -> Counter[str]:
    counts: Counter[str] = Counter()
    byte_level, bert = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.BertPreTokenizer()
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    for text in texts:
        if model == "bpe":
            counts.update(text[start:end] for _, (start, end) in byte_level.pre_tokenize_str(text))
        elif model == "unigram":
            counts.update(UNIGRAM_WORDS.findall(text))
        else:
            counts.update(word for word, _ in bert.pre_tokenize_str(normalizer.normalize_str(text)))
    return counts


def counted(model: str, texts: list[str], **options: Any) -> dict[str, int]:
    counter = WordCounter(model, **options)
    counter.add(texts[:7])
    counter.add(texts[7:])
    words = merge([counter.take()])
    assert not len(counter.take())  # it begins at 0
    assert words["word"].to_pylist() == sorted(words["word"].to_pylist())
    return dict(
        zip((word.decode() for word in words["word"].to_pylist()), words["count"].to_pylist(), strict=True)
    )


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("model", "lowercase"), CASES)
def test_words_are_those_of_tokenizers(model: str, lowercase: bool, compiled: bool, nasty_texts: list[str]):
    assert counted(model, nasty_texts, lowercase=lowercase, compiled=compiled) == expected(
        model, nasty_texts, lowercase
    )


@pytest.mark.parametrize("compiled", [True, False])
def test_words_without_end_are_cut_between_characters(compiled: bool):
    text = "a" + "é" * LONGEST_WORD
    words = counted("bpe", [text], compiled=compiled)
    assert "".join(sorted(words, key=lambda word: (word[0] != "a", -len(word)))) == text
    assert max(len(word.encode()) for word in words) <= LONGEST_WORD


def test_texts_are_normalized_and_lone_surrogates_left_out():
    assert counted("bpe", ["\ufb01ne  \u2460\n", "a\ud800b"], normalize=True) == {"fine": 1, " 1": 1, "ab": 1}
