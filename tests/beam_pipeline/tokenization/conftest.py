"""Tokenizers of every kind that `split_tokenizer` supports, and texts that are hard to tokenize."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable

import pytest
import sentencepiece
from hypothesis import strategies
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from beam_pipeline.tokenization.tokenizer_parts import PATTERNS
from beam_pipeline.tokenization.training import train

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

ATOMS = [
    *["the", "Hello", "world", "a", "I", "naïve", "Übermut", "straße", "ﬁne", "½", "①", "Ａ", "カ", "ｶﾞ"],
    *["漢字", "你好世界", "日本語テキスト", "한국어", "हिन्दी", "ไทยภาษา"],
    *["العربية", "مَرْحَبًا", "עברית", "Ελληνικά"],
    *["ὈΔΥΣΣΕΎΣ", "Привет", "и\u0306", "e\u0301", "n\u0303o", "ශ්‍රී", "বাংলা", "தமிழ்", "ქართული", "አማርኛ"],
    *["👍", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "\u200b", "\u200d", "\u200e", "\ufeff", "\u00ad", "\u2060"],
    *["\x00", "\x01", "\x1b", "\x1c", "\x7f", "\x85", "\x9f", "\u2028", "\xa0", "\u3000", "\u2003"],
    *["\u1680", "\ufffd", "\U000e0041", "\U0010ffff", "\ue000", "\ufffe", "\u0378", "\u0897", "\U00016ec4"],
    *["\u32ff", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", " \n ", "▁", "▁▁", "_"],
    *[".", ",", "!", "?", "...", "…", "--", "—", "'", "’", "'s", "'S", "'ll", "I'm", '"', "``", "''", "("],
    *[")", "[", "]", "<", ">", "/", "\\", "|", "@", "#", "##", "##ing", "$", "€", "%", "&", "*", "=", "~"],
    *["`", "0", "12", "123", "12345678", "3.14", "1,000", "²", "٣", "४", "Ⅷ", "http://a.example/?b=c"],
    *["foo_bar", "camelCase", "x" * 50, "a" * 120, "é" * 60, "字" * 60, "0" * 40, "." * 30, "=" * 70, "İ"],
    *["ı", "ſ", "ß", "Σ", "ς", "ǅ", "ﷺ", "\u0300", "\u0301\u0302", "\u093f", "\u0e33", "\u1ab0", "\u20dd"],
    *["Å", "ﾊﾟ", "㍿", "ª", "µ", "𝒜", "𐐀", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[MASK]", "[CLS]"],
    *["[UNK]", "<|endoftext|>", "<0x0A>", "<sep>"],
]
BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x3000), (0x3000, 0xD800)]
BLOCKS += [(0xE000, 0x10000), (0x10000, 0x20000)]
WORDS = [" the", " of", " and", " people", " Tokyo", " 2019", " it"]


def hard_text(rng: random.Random, parts: int) -> str:
    """Random texts made of strings that are known to confuse tokenizers."""
    found = []
    for _ in range(rng.randint(0, parts)):
        kind = rng.random()
        if kind < 0.7:
            found.append(rng.choice(ATOMS))
        elif kind < 0.8:
            found.append(chr(rng.randrange(*rng.choice(BLOCKS))))
        elif kind < 0.95:
            found.append(rng.choice(WORDS))
        else:
            found.append("".join(rng.choices("abcdefghijklmnop ", k=rng.randint(1, 80))))
    return "".join(found)


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    rng = random.Random(0)
    return ["", *(hard_text(rng, 40) for _ in range(700)), *(hard_text(rng, 3000) for _ in range(4))]


@pytest.fixture(scope="session")
def text_strategy() -> strategies.SearchStrategy[str]:
    char = strategies.characters(exclude_categories=["Cs"])
    part = strategies.one_of(strategies.sampled_from(ATOMS), strategies.sampled_from(WORDS), char)
    return strategies.lists(part, max_size=30).map("".join)


def corpus() -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 8))) for _ in range(400)]
    words += [atom for atom in ATOMS if atom.isalpha() and len(atom) < 20] * 3
    plain = [" ".join(rng.choices(words, k=40)) + rng.choice(".!?") for _ in range(500)]
    # (A Unigram trainer may make any string a piece, including those that tokie interprets as bytes.)
    return [*plain, *(hard_text(rng, 20).replace("<0x0A>", "") for _ in range(300))]


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

    position, found = 0, b""
    while position < len(message):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            varint()
        size = varint() if size is None else size
        if key == number << 3 | 2:
            found = message[position : position + size]
        position += size
    return found


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
    replaced = [{"type": "Replace", "pattern": {"String": old}, "content": '"'} for old in ("``", "''")]
    parts["normalizer"] = {"type": "Sequence", "normalizers": replaced}
    return parts


def _byte_level(
    pattern: str | None, prefix: bool = False, nfc: bool = False, ignore_merges: bool = False
) -> dict:
    tokenizer = Tokenizer(models.BPE())
    if pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", "<|endoftext|>"])
    parts = json.loads(tokenizer.to_str())
    parts["model"]["ignore_merges"] = ignore_merges
    return parts


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
    return json.loads(train(model, corpus, vocab_size=1600, allow_smaller=True, **options).tokenizer.to_str())


TOKENIZERS: dict[str, Callable[[], dict]] = {
    "unigram": lambda: _trained("unigram"),
    "unigram-in-vocabulary": _unigram_in_vocabulary,
    "unigram-quotes": _quotes,
    "unigram-t5": _t5,
    "unigram-added": lambda: _with_added(_trained("unigram")),
    "wordpiece": lambda: _trained("wordpiece"),
    "wordpiece-lowercase": lambda: _trained("wordpiece", lowercase=True),
    "bpe": lambda: _trained("bpe"),
    "bpe-prefix": lambda: _byte_level(None, prefix=True),
    "bpe-gpt2": lambda: _byte_level(PATTERNS[0]),
    "bpe-llama3": lambda: _byte_level(PATTERNS[1], ignore_merges=True),
    "bpe-qwen2": lambda: _byte_level(PATTERNS[2], nfc=True),
    "bpe-o200k": lambda: _byte_level(PATTERNS[3]),
    "bpe-added": lambda: _with_added(_byte_level(None)),
    "sentencepiece": lambda: _sentencepiece_bpe(False),
    "sentencepiece-metaspace": lambda: _sentencepiece_bpe(True),
}


@pytest.fixture(scope="session", params=TOKENIZERS)
def tokenizer_json(request: pytest.FixtureRequest) -> str:
    """The content of a tokenizer.json of each kind."""
    return json.dumps(TOKENIZERS[request.param]())


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[str], str]:
    """Makes a tokenizer of the kind with this name."""
    return lambda name: json.dumps(TOKENIZERS[name]())
