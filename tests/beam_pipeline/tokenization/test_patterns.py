"""Compiled patterns split text as `tokenizers` does, and others are refused."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from beam_pipeline.engines.engine import make_engine
from beam_pipeline.engines.split_levels import make_splitter
from beam_pipeline.tokenization.byte_level import PATTERNS, byte_characters
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent
from benchmarks.hostile_text import hostile_text

# Parts of patterns in which classes overlap, so that runs have to give characters back.
ATOMS = [
    "a",
    "b",
    " ",
    r"\s",
    r"\S",
    r"\p{L}",
    r"\p{Lu}",
    r"[^\s\p{L}]",
    r"[a-c1]",
    r"[^a]",
    r"\d",
    "é",
    "(?i:a)",
]
QUANTIFIERS = ["", "", "?", "*", "+", "++", "{2}", "{1,3}", "{2,}"]
ALPHABET = ["a", "b", "c", "A", "1", "2", " ", "\n", "é", "É", "漢", "½", "'", "s", "ſ", "\u0301"]


def random_pattern(rng: random.Random) -> str:
    def sequence(depth: int) -> str:
        parts = []
        for _ in range(rng.randint(1, 3)):
            if depth and rng.random() < 0.2:
                inner = "|".join(sequence(depth - 1) for _ in range(rng.randint(1, 3)))
                parts.append(f"(?:{inner})" + rng.choice(["", "?"]))
            else:
                atom = rng.choice(ATOMS)
                parts.append(atom + rng.choice(["", "?"] if atom.startswith("(") else QUANTIFIERS))
        if rng.random() < 0.2:
            parts.append(f"(?!{rng.choice(ATOMS[:-1])})")
        return "".join(parts)

    return "|".join(sequence(2) for _ in range(rng.randint(1, 3)))


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Returns the pieces in the byte alphabet."""
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def tokenizer_with(pattern: str, behavior: str, invert: bool) -> Tokenizer:
    """Makes a tokenizer whose tokens are the bytes."""
    vocab = {char: byte for byte, char in byte_characters().items()}
    tokenizer = Tokenizer(models.BPE(vocab, [], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior, invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def with_pieces(tokenizer: Tokenizer, texts: list[str]) -> str:
    """Returns the tokenizer.json with each piece of the texts as a token, so that ids show where they were split."""
    parts = json.loads(tokenizer.to_str())
    vocab = parts["model"]["vocab"]
    for text in texts:
        for piece in pieces_of(tokenizer, text):
            vocab.setdefault(piece, len(vocab))
    return json.dumps(parts)


def test_random_patterns_split_like_those_of_tokenizers() -> None:
    rng, supported = random.Random(0), 0
    for _ in range(400):
        pattern = random_pattern(rng)
        behavior, invert = rng.choice([("isolated", False), ("removed", True), ("removed", False)])
        tokenizer = tokenizer_with(pattern, behavior, invert)
        texts = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 14))) for _ in range(60)]
        tokenizer_json = with_pieces(tokenizer, texts)
        engine = make_engine("auto", tokenizer_json)
        if engine.name == "hf":
            assert "can match nothing" in engine.reason, (pattern, engine.reason)
            continue
        supported += 1
        ids, lengths = engine.encode_batch(texts)
        encodings = Tokenizer.from_str(tokenizer_json).encode_batch(texts, add_special_tokens=False)
        for text, part, encoding in zip(
            texts, np.split(ids, np.cumsum(lengths)[:-1]), encodings, strict=True
        ):
            assert part.tolist() == encoding.ids, (pattern, behavior, invert, text)
    assert supported > 150


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (".+a", "xxa"),
        ("[^.]+.", "xy"),
        (r"[^\x41-\x43]+[4]", "x4"),
        (r"[^\t-\r]+[-]", "x-"),
    ],
)
def test_runs_give_back_what_the_class_after_them_needs(pattern: str, text: str) -> None:
    tokenizer_json = with_pieces(tokenizer_with(pattern, "removed", True), [text])
    ids, _ = make_engine("native", tokenizer_json).encode_batch([text])
    assert ids.tolist() == Tokenizer.from_str(tokenizer_json).encode(text).ids


@pytest.mark.parametrize("patterns", PATTERNS, ids=range(len(PATTERNS)))
def test_patterns_of_models_split_hostile_text_like_tokenizers(patterns: tuple[str, ...]) -> None:
    rng = random.Random(1)
    texts = [hostile_text(rng, 30, ["'S", "'ſ", "\r\n \n", "\u200d"]) for _ in range(300)]
    tokenizer = tokenizer_with(patterns[0], "isolated", False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer_json = with_pieces(tokenizer, texts)
    ids, _ = make_engine("native", tokenizer_json).encode_batch(texts)
    encodings = Tokenizer.from_str(tokenizer_json).encode_batch(texts, add_special_tokens=False)
    assert ids.tolist() == [number for encoding in encodings for number in encoding.ids]


@pytest.mark.parametrize(
    "pattern",
    [
        *("a*", "a?b*|c", "(?:a|)", "(?!a)"),  # can match nothing
        *(
            "^a",
            "a$",
            r"\bword",
            r"a+?",
            r"(?<=a)b",
            r"(?=a)b",
            r"(a)\1",
            "(?:ab)+",
            "(?:ab){2}",
            "a{2}+",
            "(?i:ss)",
        ),
        *("(a", "a)", "[a", "a{0}", "(?!ab)", "*", ".*+"),
        *("(?i:s(?:t))", "(?i:s{2})", "(?i:ß)", r"(?i:[\p{L}])"),  # match "ﬆ" or "ss"
        *("[]a]", r"[\c]]", "a{3,2}", "a{٣}", "(?:" * 2000 + "a" + ")" * 2000),
    ],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    part = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    with pytest.raises(UnsupportedComponent, match="the pattern"):
        make_splitter([part])


def test_too_many_classes_are_refused() -> None:
    pattern = "|".join(map(chr, range(ord("A"), ord("A") + 26)))
    parts = [
        {"type": "Split", "pattern": {"Regex": part}, "behavior": "Isolated", "invert": False}
        for part in (pattern, pattern.lower())
    ]
    with pytest.raises(UnsupportedComponent, match="more than 32 classes"):
        make_splitter(parts)
