"""The native engine gives HF's ids for Unigram models of which many segmentations have equal or nearly equal scores."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from tokenizers import Tokenizer

from beam_pipeline.engines.engine import Engine, make_engine
from beam_pipeline.engines.hf import HFEngine, reference_tokenizer
from beam_pipeline.engines.word_models import exact_scores
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer

ALPHABETS = ["ab", "abc", "abcd-_", "ab▁", "aé漢{", "ab\0\ue000", "a😀𝒜\ue000<unk>0x", "ab c"]
UNKNOWN = ["<unk>", "{", "{{", "\n", "<0x0A>", "x", "xy", " ", "  ", "😀", "\0", "\ue000", "漢"]

# Functions of random numbers that often give equal sums, exactly or but for rounding.
SCORES = [
    lambda rng: -float(rng.randint(1, 12)),
    lambda rng: -round(rng.uniform(0.1, 9), 1),
    lambda rng: rng.choice([-0.1, -0.2, -0.3, -0.7, -0.6]),
    lambda rng: float(np.float32(-rng.uniform(1, 14))),
    lambda rng: -rng.uniform(1, 14) * rng.choice([1, 1e-3, 10]),
    lambda rng: float(rng.randint(-20, 40)),
]

Vocabulary = list[list]
"""The pieces and their scores."""


def random_vocabulary(rng: random.Random, chars: str) -> Vocabulary:
    """Makes a vocabulary that lacks some of the characters and has tokens that cannot occur or occur twice."""
    score = rng.choice(SCORES)
    words = ["".join(rng.choices(chars, k=rng.randint(2, 5))) for _ in range(rng.randint(2, 25))]
    words = [f"▁{word}" if rng.random() < 0.4 else word for word in words]
    known_chars = [char for char in chars if rng.random() < 0.8]
    pieces = {piece: score(rng) for piece in ("▁", *known_chars, *words)}
    if rng.random() < 0.4:
        for word in words:  # the score of its characters, give or take an error of rounding
            sum_ = sum(pieces.get(char, -20.0) for char in word)
            pieces[word] = float(np.nextafter(sum_, rng.choice([-100.0, sum_, 100.0])))
    if rng.random() < 0.2:
        pieces |= {"▁▁": score(rng), "a▁b": score(rng), "<0x0A>": 0.0, "<s>": 0.0}
    vocabulary = [["<unk>", 0.0], *([piece, value] for piece, value in pieces.items())]
    if rng.random() < 0.2:
        vocabulary.append([rng.choice(words), score(rng)])
    return vocabulary


def random_text(rng: random.Random, chars: str, vocabulary: Vocabulary) -> str:
    def part() -> str:
        kind = rng.random()
        if kind < 0.6:
            return rng.choice(vocabulary)[0].replace("▁", rng.choice("  ▁"))
        return "".join(rng.choices(chars, k=rng.randint(1, 4))) if kind < 0.9 else rng.choice(UNKNOWN)

    return "".join(part() for _ in range(rng.choice([1, 3, 8, 30])))


def unigram(vocabulary: Vocabulary, *, scheme: str = "always", **options: object) -> str:
    """Returns a tokenizer.json."""
    split = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": False, **options}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model})


def encode(engine: Engine, texts: Sequence[str]) -> list[list[int]]:
    ids, lengths = engine.encode_batch(list(texts))
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_texts_made_of_a_vocabularys_own_pieces_have_hf_ids():
    rng = random.Random(0)
    for number in range(160):
        chars = rng.choice(ALPHABETS)
        vocabulary = random_vocabulary(rng, chars)
        has_bytes = rng.random() < 0.3
        if has_bytes:
            vocabulary += [[f"<0x{byte:02X}>", 0.0] for byte in range(256) if rng.random() < 0.97]
        scheme = rng.choice(["always", "first", "never"])
        tokenizer_json = unigram(vocabulary, scheme=scheme, byte_fallback=has_bytes)
        engine = make_engine("native", tokenizer_json)
        texts = [random_text(rng, chars, vocabulary) for _ in range(60)]
        reference = engine.reference.encode_batch(texts, add_special_tokens=False)
        for text, engine_ids, encoding in zip(texts, encode(engine, texts), reference, strict=True):
            assert engine_ids == encoding.ids, (number, text)


def test_unknown_characters_are_not_left_to_hf():
    tokenizer_json = unigram([["<unk>", 0.0], ["▁", -1.5], ["a", -2.0], ["a{b", -0.1]])
    engine = make_engine("native", tokenizer_json)
    texts = ["a{b a{ {b \\\n☃☃a", "<unk>☃ \ue000漢"]
    assert encode(engine, texts) == encode(make_engine("hf", tokenizer_json), texts)
    assert engine.fallbacks.documents == 0


@pytest.mark.parametrize(
    ("vocabulary", "options", "reason"),
    [
        ([["<unk>", 0.0], ["a", -1.0]], {}, "without the piece ▁"),
        ([["<unk>", 0.0], ["▁", -1.0]], {"unk_id": None}, "without an unknown token"),
    ],
)
def test_other_models_are_left_to_hf_with_the_reason(vocabulary: Vocabulary, options: dict, reason: str):
    engine = make_engine("auto", unigram(vocabulary, **options))
    assert isinstance(engine, HFEngine) and reason in engine.reason


def test_the_lowest_score_is_read_as_tokenizers_reads_it():
    # Each of these is read with an error of one unit in the last place.
    for lowest in (-13.300000190734861, -10.123456789012344, -2.3283064365386964e-10):
        vocabulary = [["<unk>", 0.0], ["▁", -0.1], ["a", lowest], ["ab", lowest - 1e-15]]
        engine = make_engine("native", unigram(vocabulary))
        reference = reference_tokenizer(json.loads(unigram(vocabulary)), parse_special_tokens=False)
        texts = ["ab", "a b", "bab", "aab ba"]
        expected = [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=False)]
        assert encode(engine, texts) == expected


@pytest.mark.parametrize("spelling", ["%.17g", "%.18f", "%.25e"])
def test_scores_that_are_not_in_shortest_form_are_read_as_tokenizers_reads_them(spelling: str):
    rng = random.Random(0)
    scores = {f"▁{number}": -rng.uniform(1, 14) for number in range(300)}
    tokenizer_json = unigram([["<unk>", 0], ["▁", -9], *scores.items()])
    for score in scores.values():
        tokenizer_json = tokenizer_json.replace(repr(score), spelling % score)
    expected = vocabulary_of(Tokenizer.from_str(tokenizer_json))
    parsed = load_tokenizer(tokenizer_json).parsed
    assert vocabulary_of(reference_tokenizer(parsed, parse_special_tokens=False)) == expected
    read = exact_scores([score for _, score in parsed["model"]["vocab"]])
    assert read == [score for _, score in expected]


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    return json.loads(tokenizer.to_str())["model"]["vocab"]
