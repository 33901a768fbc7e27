"""Learning merges from counted words, beside the trainers in `tokenizers` on texts with these words."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from beam_pipeline.native import word_counts as native
from beam_pipeline.native.library import rows_library
from beam_pipeline.tokenization import merges
from beam_pipeline.tokenization.merges import Alphabet, learn
from beam_pipeline.tokenization.word_counts import SCHEMA, WordCounter, merge
from tests.beam_pipeline.tokenization.test_training import TEXTS, WORDS

compiled = pytest.mark.skipif(rows_library() is None, reason="there is no C compiler")
BYTES = Alphabet(tuple(sorted(pre_tokenizers.ByteLevel.alphabet())))
BERT = Alphabet(("[UNK]", "##a", "##b", "##c", "a", "b", "c"), "##")


def by_tokenizers(counts: dict[str, int], alphabet: Alphabet, vocab_size: int) -> tuple[dict, list]:
    """Trains on a text that has each word as often as it is counted."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    singles = [token for token in alphabet.tokens if len(token) == 1]
    prefix = {"continuing_subword_prefix": alphabet.inside} if alphabet.inside else {}
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=merges._MIN_FREQUENCY,
        special_tokens=[token for token in alphabet.tokens if len(token) > 1],
        initial_alphabet=singles,
        limit_alphabet=len(singles),
        show_progress=False,
        **prefix,
    )
    tokenizer.train_from_iterator((" ".join([word] * count) for word, count in counts.items()), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], list(map(tuple, model["merges"]))


def table(counts: dict[str, int]):
    words = native.binary_array([word.encode() for word in counts])
    values = native.integer_array(np.array(list(counts.values()), np.int64))
    return merge([pa.table([words, values], schema=SCHEMA)])


# Runs of a character give the same token by different merges, such as `aa a` and `a aa`, whose order the queue decides.
_CHARS = st.sampled_from(["a", "ab", "abc"]).flatmap(lambda chars: st.text(chars, min_size=1, max_size=40))
_RUNS = st.builds(lambda char, size: char * size, st.sampled_from("ab"), st.integers(1, 70))
_COUNTS = st.dictionaries(st.one_of(_CHARS, _RUNS), st.sampled_from([1, 1, 2, 3, 7]), min_size=1, max_size=30)


@compiled
@pytest.mark.parametrize("alphabet", [BYTES, BERT], ids=["bpe", "wordpiece"])
@settings(max_examples=300, deadline=None)
@given(counts=_COUNTS, further=st.sampled_from([0, 1, 2, 3, 5, 10, 20, 50, 5000]))
def test_ties_and_repeated_tokens_are_resolved_as_in_tokenizers(
    alphabet: Alphabet, counts: dict[str, int], further: int
):
    vocab_size = len(alphabet.tokens) + further
    learnt = learn(table(counts), alphabet, vocab_size)
    assert (learnt.vocabulary, learnt.merges) == by_tokenizers(counts, alphabet, vocab_size)


@compiled
def test_real_text_gives_the_vocabulary_of_tokenizers():
    counts = Counter(word for word in WORDS if word.isascii())
    for vocab_size in (300, 700, 9000):
        learnt = learn(table(counts), BYTES, vocab_size)
        assert (learnt.vocabulary, learnt.merges) == by_tokenizers(counts, BYTES, vocab_size)


@compiled
@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_without_a_compiler_the_result_is_the_same(model: str, monkeypatch: pytest.MonkeyPatch):
    counter = WordCounter(model)
    counter.add(TEXTS)
    words = merge([counter.take()])
    chars = sorted({char for word in words["word"].to_pylist() for char in word.decode()} - {"漢"})
    alphabet = (
        BYTES if model == "bpe" else Alphabet(("[UNK]", *("##" + char for char in chars), *chars), "##")
    )
    monkeypatch.setattr(merges, "_CHARS_PER_TEXT", 50)
    monkeypatch.setattr(merges, "_WORDS_PER_PART", 7)
    assert learn(words, alphabet, 900) == learn(words, alphabet, 900, compiled=False)


@compiled
def test_counts_beyond_32_bits():
    """The trainer in `tokenizers` counts pairs with 32 bits."""
    learnt = learn(table({"ab": 3 << 32, "bc": 1 << 33, "abc": 1}), BYTES, 258)
    assert learnt.merges == [("a", "b"), ("b", "c")]


@compiled
def test_no_words_and_a_long_one():
    assert learn(table({}), BYTES, 300).merges == []
    # "ab", then its powers of two that occur twice, and what is left over.
    longest = max(map(len, learn(table({"ab" * 30_000: 1}), BYTES, 300).vocabulary))
    assert longest == 2**15
