"""Tokenizers of every kind that `split_tokenizer` supports, and texts that are hard to tokenize."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import strategies
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from beam_pipeline.tokenization import byte_level, normalization
from benchmarks.hostile_text import ATOMS, WORDS, hard_text, hostile_text
from tests.beam_pipeline.training import train

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    rng = random.Random(0)
    return ["", *(hard_text(rng, 40) for _ in range(700)), *(hard_text(rng, 3000) for _ in range(4))]


@pytest.fixture(scope="session")
def hostile_texts() -> list[str]:
    """Texts with runs of spaces and signs, broken graphemes, and the added tokens of the tokenizers below."""
    rng = random.Random(2)
    literals = [*LITERALS, *SPACE_RUNS, *BYTE_PIECES, "NewWord", "newword", "▁of▁the", "a{b", "a b"]
    literals += ["\t ", "\t\t  ", "\n  \n", "  \n  \n", "\n ", "\t▁"]
    return [hostile_text(rng, rng.choice([3, 12, 40]), literals) for _ in range(400)]


@pytest.fixture(scope="session")
def text_strategy() -> strategies.SearchStrategy[str]:
    char = strategies.characters(exclude_categories=["Cs"])
    part = strategies.one_of(strategies.sampled_from(ATOMS), strategies.sampled_from(WORDS), char)
    return strategies.lists(part, max_size=30).map("".join)


# Many tokenizers have added tokens that are not special.
SPACE_RUNS = [" " * count for count in range(2, 25)]
LITERALS = ["\n", "\n\n", "\n\n\n", "\t\t", "<b>", "</b>", "<bold>", "<unused7>", "▁▁", "|||IP_ADDRESS|||"]
BYTE_PIECES = ["<0x00>", "<0x0A>", "<0xE9>"]


def corpus() -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 8))) for _ in range(400)]
    words += [atom for atom in ATOMS if atom.isalpha() and len(atom) < 20] * 3
    plain_texts = [" ".join(rng.choices(words, k=40)) + rng.choice(".!?") for _ in range(500)]
    # (A Unigram trainer may make any string a piece, also one that stands for a byte.)
    return [*plain_texts, *(hard_text(rng, 20).replace("<0x0A>", "") for _ in range(300))]


def _unigram_in_vocabulary() -> dict:
    """As converted from SentencePiece models: the special tokens are pieces of the model, with score 0."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return json.loads(tokenizer.to_str())


def _unigram_first() -> dict:
    """Like those of XLM-R: white space is folded, and only the beginning of a text gets a mark."""
    parts = _unigram_in_vocabulary()
    fold = {"type": "Replace", "pattern": {"Regex": normalization.FOLD_SPACE}, "content": " "}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    parts["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, fold, strip]}
    parts["pre_tokenizer"]["prepend_scheme"] = "first"
    return parts


def _charsmap() -> str:
    """SentencePiece's nmt_nfkc rules, as in every T5 and XLM-R tokenizer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()[:100]),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    normalizer_spec = _field(model.getvalue(), 3)
    return base64.b64encode(_field(normalizer_spec, 2)).decode()


def _field(message: bytes, number: int) -> bytes:
    """Returns the last length-delimited field with this number in a protocol buffer.

    (The generated Python module requires another version of protobuf.)
    """

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    position, field_bytes = 0, b""
    while position < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            varint()
        size = varint() if size is None else size
        if key == number << 3 | 2:
            field_bytes = message[position : position + size]
        position += size
    return field_bytes


def _t5() -> dict:
    parts = _unigram_in_vocabulary()
    parts["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": _charsmap()},
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        ],
    }
    parts["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, parts["pre_tokenizer"]],
    }
    return parts


def _quotes() -> dict:
    """As in Keras's example of training a RoBERTa on TPUs: quotation marks are replaced."""
    parts = _unigram_in_vocabulary()
    replacements = [
        {"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")
    ]
    parts["normalizer"] = {"type": "Sequence", "normalizers": replacements}
    return parts


def _byte_level(
    patterns: tuple[str, ...] = (),
    *,
    prefix: bool = False,
    nfc: bool = False,
    ignore_merges: bool = False,
    removes_matches: bool = False,
    digits: bool = False,
) -> dict:
    tokenizer = Tokenizer(models.BPE())
    parts = [
        pre_tokenizers.Split(
            Regex(pattern), "removed" if removes_matches else "isolated", invert=removes_matches
        )
        for pattern in patterns
    ]
    if digits:
        parts.append(pre_tokenizers.Digits(individual_digits=True))
    final_pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=not patterns)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([*parts, final_pre_tokenizer]) if parts else final_pre_tokenizer
    )
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", "<|endoftext|>"])
    parts = json.loads(tokenizer.to_str())
    parts["model"]["ignore_merges"] = ignore_merges
    return parts


def _falcon(individual_digits: bool = False) -> dict:
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    return {**_byte_level(), "pre_tokenizer": json.loads(pre_tokenizer.__getstate__())}


def _falling_back(parts: dict) -> dict:
    """Like nanochat's, whose model asks for byte fallback, although it has no tokens for that."""
    return {**parts, "model": {**parts["model"], "byte_fallback": True}}


def _sentencepiece_bpe(metaspace: bool) -> dict:
    """Like Llama's: as converted formerly (with a normalizer) and today (with a pre-tokenizer that does not split)."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [token for token in parts["added_tokens"] if token["content"] not in bytes_]
    parts["normalizer"] = parts["pre_tokenizer"] = None
    if metaspace:
        scheme = {"replacement": "▁", "prepend_scheme": "first", "split": False}
        parts["pre_tokenizer"] = {"type": "Metaspace", **scheme}
    else:
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        parts["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace],
        }
    return parts


def _neox() -> dict:
    """Like GPT-NeoX's: no tokens for bytes that are never in UTF-8, and added tokens for runs of spaces."""
    parts = without_bytes(_byte_level(nfc=True), "ÀÁõö÷øùúûüýþÿ")
    return _with_literals(parts, [*SPACE_RUNS, "e\u0301tat", "|||IP_ADDRESS|||"], normalized=True)


def without_bytes(parts: dict, chars: str) -> dict:
    """Removes bytes, by their characters in the byte alphabet, and what is made of them."""
    model, missing_chars = parts["model"], set(chars)
    # (The ids have no holes, since HF would give other ids to the added tokens.)
    vocab = sorted(filter(missing_chars.isdisjoint, model["vocab"]), key=model["vocab"].get)
    merges = [merge for merge in model["merges"] if missing_chars.isdisjoint("".join(merge))]
    model = {**model, "vocab": {key: number for number, key in enumerate(vocab)}, "merges": merges}
    added_tokens = [
        {**token, "id": len(vocab) + number, "special": True}
        for number, token in enumerate(parts["added_tokens"])
    ]
    return {**parts, "model": model, "added_tokens": added_tokens}


def _gemma() -> dict:
    """Like Gemma 3's, which has a token that spans two words."""
    parts = _with_spanning(_sentencepiece_bpe(False), [("a", "▁"), ("a▁", "b")])
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    parts.update(normalizer=replace, pre_tokenizer=split)
    return _with_literals(parts, LITERALS, normalized=False)


def _with_spanning(parts: dict, merges: Sequence[tuple[str, str]]) -> dict:
    """Adds tokens that span words, such as InternLM 2's."""
    model = parts["model"]
    for left_piece, right_piece in merges:
        for piece in (left_piece, right_piece, left_piece + right_piece):
            model["vocab"].setdefault(piece, len(model["vocab"]))
        model["merges"].insert(0, [left_piece, right_piece])
    return parts


def _mt5() -> dict:
    """Like mT5's and mBART's: no split at white space, and pieces that look like bytes."""
    parts = _unigram_in_vocabulary()
    parts["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": _charsmap()}
    parts["pre_tokenizer"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    parts["model"]["vocab"] += [[piece, 0.0] for piece in BYTE_PIECES]
    return _with_short_scores(parts)


def _with_short_scores(parts: dict) -> dict:
    """Rounds the scores as in SentencePiece's models."""
    vocab = [[piece, float(np.float32(score))] for piece, score in parts["model"]["vocab"]]
    return {**parts, "model": {**parts["model"], "vocab": vocab}}


def _albert() -> dict:
    """Few characters are known, and some of the others are parts of pieces."""
    parts = _t5()
    quotes = [{"type": "Replace", "pattern": {"String": quote}, "content": '"'} for quote in ("``", "''")]
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    other_steps = [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, spaces]
    parts["normalizer"] = {"type": "Sequence", "normalizers": [*quotes, *other_steps]}
    vocab = [
        [piece, score] for piece, score in parts["model"]["vocab"] if len(piece) > 1 or piece in "▁aeinorst"
    ]
    parts["model"]["vocab"] = [*vocab, ["a{b", -3.0], ["▁{", -9.0], ["x}", -3.5]]
    return _with_short_scores(parts)


def _with_literals(parts: dict, contents: list[str], *, normalized: bool) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    first = 1 + max(_ids(parts))
    added_tokens = [
        {"id": first + number, "content": content, "normalized": normalized, **flags}
        for number, content in enumerate(contents)
    ]
    return {**parts, "added_tokens": [*parts["added_tokens"], *added_tokens]}


def _ids(parts: dict) -> list[int]:
    vocab = parts["model"]["vocab"]
    vocabulary_ids = range(len(vocab)) if isinstance(vocab, list) else vocab.values()
    return [*vocabulary_ids, *(token["id"] for token in parts["added_tokens"])]


def _lowercase_with_accents() -> dict:
    parts = _trained("wordpiece", lowercase=True)
    normalizer = {**parts["normalizer"], "strip_accents": False}
    return {**parts, "normalizer": {"type": "Sequence", "normalizers": [normalizer]}}


def _with_added(parts: dict) -> dict:
    """Adds two tokens that are found in text although they are not special. One absorbs the spaces around it."""
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    options = {"normalized": False, "special": False}
    parts = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    for number, (content, strip) in enumerate((("<sep>", False), ("``", True))):
        flags = {"single_word": False, "lstrip": strip, "rstrip": strip, **options}
        parts["added_tokens"].append({"id": size + number, "content": content, **flags})
    return parts


def _trained(model: str, **options: object) -> dict:
    return json.loads(train(model, corpus, vocab_size=1600, **options).tokenizer.to_str())


_EMPTY = {"type": "Sequence", "normalizers": []}
_PHRASES = [("▁of", "▁the"), ("\n", "▁"), ("a", "▁b")]
_LINES_OF_SPACES = [("▁", "▁"), ("▁▁", "\n"), ("\n", "▁▁\n"), ("▁▁", "\n▁▁\n"), ("\t", "▁"), ("\t", "\t▁")]

TOKENIZERS: dict[str, Callable[[], dict]] = {
    "unigram": lambda: _trained("unigram"),
    "unigram-normalized": lambda: _trained("unigram", normalize=True),
    "unigram-first": _unigram_first,
    "unigram-in-vocabulary": _unigram_in_vocabulary,
    "unigram-quotes": _quotes,
    "unigram-t5": lambda: _with_short_scores(_t5()),
    "unigram-mt5": _mt5,
    "unigram-albert": _albert,
    "unigram-added": lambda: _with_added(_trained("unigram")),
    "wordpiece": lambda: _trained("wordpiece"),
    "wordpiece-lowercase": lambda: _trained("wordpiece", lowercase=True),
    "wordpiece-accents": _lowercase_with_accents,
    "bpe": lambda: _trained("bpe"),
    "bpe-normalized": lambda: _trained("bpe", normalize=True),
    "bpe-prefix": lambda: _byte_level(prefix=True),
    "bpe-gpt2": lambda: _byte_level((byte_level.GPT2_PATTERN,)),
    "bpe-gpt4": lambda: _byte_level((byte_level.LLAMA3_PATTERN,), removes_matches=True),
    "bpe-llama3": lambda: _byte_level((byte_level.LLAMA3_PATTERN,), ignore_merges=True),
    "bpe-qwen2": lambda: _byte_level((byte_level.QWEN2_PATTERN,), nfc=True),
    "bpe-qwen3.5": lambda: _byte_level((byte_level.QWEN35_PATTERN,), nfc=True),
    "bpe-nanochat": lambda: _falling_back(_byte_level((byte_level.NANOCHAT_PATTERN,))),
    "bpe-llama3-pairs": lambda: _byte_level((byte_level.LLAMA3_PATTERN.replace("{1,3}", "{1,2}"),)),
    "bpe-o200k": lambda: _byte_level((byte_level.O200K_PATTERN,)),
    "bpe-tekken": lambda: _byte_level((byte_level.TEKKEN_PATTERN,), ignore_merges=True),
    "bpe-deepseek": lambda: {**_byte_level(byte_level.DEEPSEEK_PATTERNS), "normalizer": _EMPTY},
    "bpe-digits": lambda: _byte_level(digits=True, nfc=True),
    "bpe-falcon": _falcon,
    "bpe-neox": _neox,
    "bpe-phi2": lambda: _with_literals(_byte_level(), [*SPACE_RUNS, "\t\t"], normalized=True),
    "bpe-without-bytes": lambda: without_bytes(_byte_level(), "ãðİ"),
    "bpe-added": lambda: _with_added(_byte_level()),
    "sentencepiece": lambda: _sentencepiece_bpe(False),
    "sentencepiece-metaspace": lambda: _sentencepiece_bpe(True),
    "sentencepiece-gemma": _gemma,
    "sentencepiece-internlm": lambda: _with_spanning(_sentencepiece_bpe(False), _LINES_OF_SPACES),
    "sentencepiece-phrases": lambda: _with_spanning(_sentencepiece_bpe(False), _PHRASES),
}


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer_json(request: pytest.FixtureRequest) -> str:
    """The content of a tokenizer.json of each kind."""
    return json.dumps(TOKENIZERS[request.param]())


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[str], str]:
    """Makes a tokenizer of the kind with this name."""
    return lambda name: json.dumps(TOKENIZERS[name]())


@pytest.fixture
def save(tmp_path: Path, make_tokenizer: Callable[[str], str]) -> Callable[..., Path]:
    """Saves a tokenizer of one of the kinds, optionally changed, together with other files."""

    def write(
        kind: str = "bpe-gpt2",
        change: Callable[[Tokenizer], Any] | None = None,
        name: str = "saved",
        **files: dict,
    ) -> Path:
        tokenizer = Tokenizer.from_str(make_tokenizer(kind))
        if change is not None:
            change(tokenizer)
        folder = tmp_path / name
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        for file, data in files.items():
            (folder / f"{file}.json").write_text(json.dumps(data))
        return folder

    return write
