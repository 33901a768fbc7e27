"""No text encodes to a control token, whatever the model, the engine and the text; other text keeps its ids."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable, Collection

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from beam_pipeline.engines.documents import DocumentTokenizer
from beam_pipeline.engines.engine import check_engine, make_engine
from beam_pipeline.sources.units import DocumentBatch
from beam_pipeline.support.errors import EngineMismatch, UsageError
from beam_pipeline.support.texts import Texts
from beam_pipeline.tokenization.control_tokens import find_control_ids, tokenizer_for_text
from beam_pipeline.tokenization.template import Template
from beam_pipeline.tokenization.tokenizer_json import BYTE_TOKENS, load_tokenizer

EOS, MASK, CHAT = "<|end|>", "[MASK]", "<extra>"
CONTROL = (EOS, MASK, CHAT)
WORDS = ["the", "of", "people", "hello", "world", "end", "MASK", "extra"]


def _alphabet(*extra_tokens: str) -> list[str]:
    return sorted({*"".join(CONTROL), *"".join(WORDS), *map(chr, range(0x21, 0x7F)), *extra_tokens})


def _added(tokenizer: Tokenizer, *, special: bool, normalized: bool = False) -> Tokenizer:
    """Adds the control tokens as added tokens, marked special or not."""
    tokens = [AddedToken(token, special=special, normalized=normalized) for token in CONTROL]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(tokens)
    return tokenizer


def _word_level(split: pre_tokenizers.PreTokenizer) -> Tokenizer:
    words = ["<unk>", *CONTROL, *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = split
    return tokenizer


def _word_piece() -> Tokenizer:
    pieces = ["[UNK]", *CONTROL, *WORDS, *_alphabet(), *(f"##{char}" for char in _alphabet()), f"##{EOS}"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _bert() -> Tokenizer:
    tokenizer = _word_piece()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _bpe(
    space: str = "Ġ", *, ignore_merges: bool = False, with_merges: bool = True, **options: object
) -> Tokenizer:
    """A model with the control tokens in its vocabulary, with or without merges that produce them."""
    vocab = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *BYTE_TOKENS, "▁", "<unk>"]
    merges = []
    for token in (*WORDS, *(CONTROL if with_merges else ())):
        for end in range(2, len(token) + 1):
            merges.append((token[: end - 1], token[end - 1]))
            vocab.append(token[:end])
    vocab = list(dict.fromkeys([*vocab, *CONTROL, *(space + word for word in WORDS)]))
    merges = list(dict.fromkeys([*merges, *((space, word) for word in WORDS)]))
    model = models.BPE(
        {token: number for number, token in enumerate(vocab)}, merges, ignore_merges=ignore_merges, **options
    )
    return Tokenizer(model)


def _byte_level(**options: object) -> Tokenizer:
    tokenizer = _bpe(**options)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def _whole_words(**options: object) -> Tokenizer:
    """Splits at white space only: a control token is a word, which `ignore_merges` looks up in the vocabulary."""
    tokenizer = _bpe(**options)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    return tokenizer


def _sentencepiece() -> Tokenizer:
    tokenizer = _bpe("▁", unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return tokenizer


def _unigram(*, split: bool = True, byte_fallback: bool = False) -> Tokenizer:
    pieces = [("<unk>", 0.0), *((token, 0.0) for token in CONTROL), *((f"▁{word}", -3.0) for word in WORDS)]
    pieces += [(char, -8.0) for char in ("▁", *_alphabet())]
    pieces += [(f"{EOS}▁the", -1.0), *((token, -9.0) for token in BYTE_TOKENS if byte_fallback)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    if split:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def _normalized(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.NFKC()
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "word-level": lambda: _word_level(pre_tokenizers.WhitespaceSplit()),
    "word-level, marked": lambda: _added(_word_level(pre_tokenizers.WhitespaceSplit()), special=True),
    "word-level, whole": lambda: _added(_word_level(pre_tokenizers.Sequence([])), special=False),
    "wordpiece": lambda: _added(_word_piece(), special=False),
    "wordpiece, nfkc": lambda: _normalized(_added(_word_piece(), special=True, normalized=True)),
    "wordpiece, bert": lambda: _added(_bert(), special=False),
    "byte-level": lambda: _added(_byte_level(), special=False),
    "byte-level, ignore_merges": lambda: _added(_byte_level(ignore_merges=True), special=True),
    "byte-level, words": lambda: _added(_whole_words(ignore_merges=True, merged=False), special=True),
    "byte-level, words, nfkc": lambda: _normalized(_whole_words(ignore_merges=True)),
    "byte-level, unknown is eos": lambda: _added(_byte_level(unk_token=EOS), special=False),
    "sentencepiece": lambda: _added(_sentencepiece(), special=False),
    "sentencepiece, nfkc": lambda: _normalized(_added(_sentencepiece(), special=True, normalized=True)),
    "unigram": lambda: _added(_unigram(), special=True),
    "unigram, not marked": lambda: _added(_unigram(), special=False),
    "unigram, not added, nfkc": lambda: _normalized(_unigram()),
    "unigram, unsplit": lambda: _added(_unigram(split=False), special=True),
    "unigram, bytes": lambda: _added(_unigram(byte_fallback=True), special=False),
}


def _hostile_texts(rng: random.Random) -> list[str]:
    """The control tokens alone, within words, in pieces, between other characters, and as look-alikes."""
    wide_tokens = [
        "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in token)
        for token in CONTROL
    ]
    assert [unicodedata.normalize("NFKC", token) for token in wide_tokens] == list(CONTROL)
    atoms = [*CONTROL, *wide_tokens, *(token[:3] for token in CONTROL), *(token[3:] for token in CONTROL)]
    atoms += [f"##{EOS}", f"▁{EOS}", f"Ġ{EOS}", "<unk>", "[UNK]", "<0x0A>"]
    atoms += ["\n", "漢", "\u0300", "\u200b", "</s>"]
    atoms += [*WORDS, " ", "  ", "\t", ".", "x" * 120]
    texts = [form.format(atom) for atom in atoms for form in ("{}", " {}", "{} ", "a{}b", "{0}{0}", "a {} b")]
    return texts + ["".join(rng.choices(atoms, k=rng.randint(2, 8))) for _ in range(300)]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def control_of(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.token_to_id(token) for token in CONTROL}


def encode(tokenizer: Tokenizer, engine: str, texts: list[str], **options: object) -> list[list[int]]:
    core = make_engine(engine, tokenizer.to_str(), control_ids=control_of(tokenizer), **options)
    ids, lengths = core.encode_batch(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def test_no_text_encodes_to_a_control_token(tokenizer: Tokenizer):
    texts = _hostile_texts(random.Random(0))
    control = control_of(tokenizer)
    # With --parse_special_tokens they are forged, so this test can fail.
    assert any(control & set(ids) for ids in encode(tokenizer, "hf", texts, parse_special_tokens=True))
    hf_ids = encode(tokenizer, "hf", texts)
    for text, ids in zip(texts, hf_ids, strict=True):
        assert control.isdisjoint(ids), repr(text)
    assert encode(tokenizer, "auto", texts) == hf_ids


def test_text_without_control_tokens_keeps_its_ids(tokenizer: Tokenizer):
    texts = _hostile_texts(random.Random(1))
    plain_texts = [
        text for text in texts if not any(token in unicodedata.normalize("NFKC", text) for token in CONTROL)
    ]
    assert len(plain_texts) > 100
    expected = [encoding.ids for encoding in tokenizer.encode_batch(plain_texts, add_special_tokens=False)]
    for engine in ("auto", "hf"):
        assert encode(tokenizer, engine, plain_texts) == expected


def test_the_other_special_tokens_are_those_marked_so():
    parsed = load_tokenizer(_added(_byte_level(), special=True).to_str()).parsed
    special_ids = {token["id"] for token in parsed["added_tokens"]}
    assert find_control_ids(parsed, ()) == special_ids
    assert find_control_ids(parsed, {1}, {2}) == special_ids | {1, 2}


def test_the_unknown_token_is_reached_by_unknown_text_alone():
    tokenizer = _word_level(pre_tokenizers.WhitespaceSplit())
    tokenizer.add_special_tokens(["<unk>"])
    parsed = load_tokenizer(tokenizer.to_str()).parsed
    assert find_control_ids(parsed, {1, 2, 3}, {0}) == {1, 2, 3}
    assert encode(tokenizer, "hf", ["the unheard-of"]) == [[tokenizer.token_to_id("the"), 0]]


@pytest.mark.parametrize(
    ("make", "token", "reason"),
    [
        (
            lambda: _word_level(pre_tokenizers.WhitespaceSplit()),
            "<unk>",
            "unknown text to the control token '<unk>'",
        ),
        (_unigram, "<unk>", "unknown text to the control token '<unk>'"),
        (_byte_level, "!", "'!' is a control token"),
        (_sentencepiece, "<0x0A>", "'<0x0A>' is a control token"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "hf"])
def test_a_tokenizer_that_needs_a_control_token_for_text_is_refused(
    make: Callable[[], Tokenizer], token: str, reason: str, engine: str
):
    tokenizer = make()
    options = {"control_ids": {tokenizer.token_to_id(token)}}
    with pytest.raises(UsageError, match=f"{reason}.*--parse_special_tokens"):
        check_engine(engine, tokenizer.to_str(), parse_special_tokens=False, **options)
    check_engine(engine, tokenizer.to_str(), parse_special_tokens=True, **options)


def test_two_keys_of_one_id():
    parts = json.loads(_word_level(pre_tokenizers.WhitespaceSplit()).to_str())
    eos = parts["model"]["vocab"][EOS]
    parts["model"]["vocab"]["the"] = eos
    engine = make_engine("hf", json.dumps(parts), control_ids=[eos])
    assert engine.encode_batch(["the world"])[0].tolist() == [0, parts["model"]["vocab"]["world"]]


def test_ids_and_size_stay(tokenizer: Tokenizer):
    text_tokenizer_json = tokenizer_for_text(
        tokenizer.to_str(), parse_special_tokens=False, control_ids=control_of(tokenizer)
    )
    loaded = Tokenizer.from_str(json.dumps(text_tokenizer_json))
    assert loaded.get_vocab_size() == tokenizer.get_vocab_size()
    ordinary_ids = {token: number for token, number in tokenizer.get_vocab().items() if token not in CONTROL}
    assert {token: loaded.token_to_id(token) for token in ordinary_ids} == ordinary_ids


@pytest.mark.parametrize("other_ids", [(), range(300, 340, 3)], ids=["a run of ids", "many runs"])
def test_an_engine_that_forges_a_control_token_ends_the_run_naming_the_document(
    other_ids: Collection[int], monkeypatch: pytest.MonkeyPatch
):
    tokenizer = _added(_byte_level(), special=True)
    eos = tokenizer.token_to_id(EOS)
    documents = DocumentTokenizer(
        tokenizer_json=tokenizer.to_str(),
        vocab_size=tokenizer.get_vocab_size(),
        template=Template((), (eos,)),
        engine="hf",
        control_ids=control_of(tokenizer) | set(other_ids),
    )
    texts = ["the", "", "world", "people"]
    batch = DocumentBatch("x", Texts.of(texts), np.array([10, 20, 30, 40]))
    assert (documents.encode(batch)[1].ids == eos).sum() == len(texts)  # only the template's

    encode_batch = documents._engine.encode_batch

    def forge(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = encode_batch(texts)
        ids[lengths[:3].sum() - 1] = eos
        return ids, lengths

    monkeypatch.setattr(documents._engine, "encode_batch", forge)
    with pytest.raises(EngineMismatch, match=f"control token with id {eos}") as error:
        documents.encode(batch)
    assert error.value.place == 30
