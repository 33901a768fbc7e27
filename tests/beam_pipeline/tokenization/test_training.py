"""Trained tokenizers: the same bytes each time, in files that AutoTokenizer loads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoTokenizer

from beam_pipeline.engines.hf import reference_tokenizer
from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.control_tokens import tokenizer_for_text
from benchmarks.hostile_text import ATOMS, RUNS
from tests.beam_pipeline.training import train

MODELS = ("unigram", "bpe", "wordpiece")

# Enough English words that merges and pieces have ties.
WORDS = (Path(__file__).parent / "test_engines.py").read_text(encoding="utf-8").split()
TEXTS = [" ".join(WORDS[first : first + 40]) + " Ünïcödé 漢字 wörter!" for first in range(0, len(WORDS), 40)]


def texts() -> Iterator[str]:
    return iter(TEXTS)


def digest(files: dict[str, bytes]) -> str:
    return hashlib.sha256(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()


@pytest.mark.parametrize("model", MODELS)
def test_the_same_bytes_in_every_process(model: str):
    """In each process, the libraries' hash maps have a different order and their threads a different speed."""
    program = (
        "import sys, hashlib, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('here', {str(Path(__file__))!r})\n"
        "here = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(here)\n"
        "print(here.digest(here.train(sys.argv[1], here.texts, vocab_size=500).files()))\n"
    )
    digests = set()
    for threads in ("1", "2", "4"):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        environment["TOKENIZERS_PARALLELISM"] = "false" if threads == "1" else "true"
        command = [sys.executable, "-c", program, model]
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert digests == {digest(train(model, texts, vocab_size=500).files()).encode() + b"\n"}


@pytest.mark.parametrize("model", MODELS)
def test_auto_tokenizer_loads_it(model: str, tmp_path: Path):
    trained = train(model, texts, vocab_size=500)
    for name, data in trained.files().items():
        (tmp_path / name).write_bytes(data)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == 500
    assert loaded.pad_token_id is not None and loaded.mask_token_id is not None
    assert loaded.pad_token_id not in (loaded.eos_token_id, loaded.bos_token_id, loaded.sep_token_id)
    assert loaded("a b").input_ids == trained.tokenizer.encode("a b").ids
    if model == "bpe":
        assert loaded.bos_token == loaded.eos_token == "<|endoftext|>"
        assert "token_type_ids" not in loaded("a b")
    else:
        ids = loaded("the test").input_ids
        assert (ids[0], ids[-1]) == (loaded.cls_token_id, loaded.sep_token_id)
        assert ("token_type_ids" in loaded("a b")) == (model == "wordpiece")


_CHARACTERS = strategies.characters(exclude_categories=["Cs"])
_ATOMS = strategies.sampled_from([*ATOMS, *RUNS, *ByteLevel.alphabet(), "\n", "\r", "\t", " ", "▁", "\ufeff"])


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def byte_level(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer as users load it, for which special tokens in a text are text."""
    folder = tmp_path_factory.mktemp(request.param)
    for name, data in train(request.param, texts, vocab_size=500).files().items():
        (folder / name).write_bytes(data)
    return AutoTokenizer.from_pretrained(folder, split_special_tokens=True)


@given(strategies.lists(strategies.one_of(_ATOMS, _CHARACTERS), max_size=30).map("".join))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("")
@example("\n")
@example(" \tdef f(x):\r\n\t  return\u00a0 x\n\n ")
@example("<mask> <s>a</s>  <pad>")
def test_byte_level_tokenizers_keep_every_text(byte_level: Any, text: str):
    """Decoding, by transformers and by `tokenizers`, gives what was encoded."""
    ids = byte_level(text, add_special_tokens=False).input_ids
    assert byte_level.decode(ids) == text
    assert byte_level.backend_tokenizer.decode(ids) == text
    assert byte_level.decode(byte_level(text).input_ids, skip_special_tokens=True) == text
    assert byte_level.unk_token_id is None or byte_level.unk_token_id not in ids


def test_pieces_join_neither_letters_and_signs_nor_words():
    pieces = train(
        "unigram", lambda: ["x = foo(bar)\n    and 漢字, 漢字\n"] * 99, vocab_size=400
    ).tokenizer.get_vocab()
    assert {"Ġfoo", "Ċ", "Ġand", "=", "ĊĠĠĠ"} <= pieces.keys()
    assert not {"foo(", "(bar", ")Ċ", "bar)", ")ĊĠĠĠ"} & pieces.keys()


def test_a_mask_takes_the_space_before_it():
    tokenizer = train("unigram", texts, vocab_size=500).tokenizer
    masked = tokenizer.encode("import <mask>, from").tokens
    assert masked == [
        *tokenizer.encode("import").tokens[:-1],
        " <mask>",
        *tokenizer.encode(", from").tokens[1:],
    ]


@pytest.mark.parametrize("model", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("  two  spaces\t\r\nand\x0b lines \x1f\u2028here ", " two spaces and lines here"),
        ("\ufb01ne \u2460 Ａ", "fine 1 A"),
    ],
)
def test_text_is_folded_on_request(model: str, text: str, folded: str):
    tokenizer = train(model, texts, vocab_size=500, normalize=True).tokenizer
    assert tokenizer.decode(tokenizer.encode(text).ids) == folded
    assert tokenizer.encode(text).ids == tokenizer.encode(folded).ids


def test_lowercase_folds_case_and_accents():
    tokenizer = train("wordpiece", texts, vocab_size=500, lowercase=True).tokenizer
    assert tokenizer.encode("IMPORT Über").ids == tokenizer.encode("import uber").ids
    cased = train("wordpiece", texts, vocab_size=500).tokenizer
    assert cased.encode("IMPORT").ids != cased.encode("import").ids


@pytest.mark.parametrize("model", MODELS)
def test_more_tokens_than_the_text_supports(model: str):
    with pytest.raises(DataError, match=r"--vocab_size 90000: the text supports \d+ tokens at most"):
        train(model, texts, vocab_size=90000, strict=True)
    smaller_tokenizer = train(model, texts, vocab_size=90000).tokenizer
    assert 500 < smaller_tokenizer.get_vocab_size() < 90000
    train(model, texts, vocab_size=smaller_tokenizer.get_vocab_size(), strict=True)  # as the message suggests


def test_fewer_tokens_than_characters():
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 600)))
    with pytest.raises(DataError, match=r"--vocab_size 400: too small .* need \d+") as error:
        train("wordpiece", lambda: [letters] * 3, vocab_size=400)
    min_vocab_size = int(str(error.value).rpartition(" ")[2])
    train("wordpiece", lambda: [letters] * 3, vocab_size=min_vocab_size + 2)


@pytest.mark.parametrize("model", MODELS)
def test_further_special_tokens_have_the_last_ids(model: str):
    tokens = ("<|im_start|>", "<|im_end|>")
    trained = train(model, lambda: [*TEXTS, "a <|im_end|> b"], vocab_size=500, special_tokens=tokens)
    size = trained.tokenizer.get_vocab_size()
    assert size <= 500
    assert [trained.tokenizer.token_to_id(token) for token in tokens] == [size - 2, size - 1]
    text = tokenizer_for_text(trained.tokenizer.to_str(), parse_special_tokens=False)
    ids = reference_tokenizer(text, parse_special_tokens=False).encode("<|im_start|>a<|im_end|>").ids
    assert max(ids) < size - 2
    with pytest.raises(DataError, match=r"--special_tokens .*: the tokenizer has this token already"):
        train(model, lambda: TEXTS, vocab_size=500, special_tokens=["e"])


@pytest.mark.parametrize("model", MODELS)
def test_literals_of_special_tokens_in_the_corpus_are_text(model: str):
    """A web page about tokenizers may contain `<mask>`, which is neither learnt nor taken for the special token."""
    hostile_texts = ["<s> a <mask> b </s> <pad> [MASK] [CLS] <|endoftext|> <mask> <unk> [UNK]"] * 50
    tokenizer = train(model, lambda: [*TEXTS, *hostile_texts], vocab_size=500).tokenizer
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = [piece for piece, _ in vocabulary] if model == "unigram" else list(vocabulary)
    assert len(pieces) == len(set(pieces))
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    # The other models have them in the vocabulary, where no word equals "[MASK]" and "<mask>" never wins.
    if model == "bpe":
        assert not special & set(pieces)
    second = Tokenizer.from_str(tokenizer.to_str())
    second.encode_special_tokens = True
    unknown_tokens = {"<unk>", "[UNK]"}
    assert not set(second.encode(hostile_texts[0], add_special_tokens=False).tokens) & (
        special - unknown_tokens
    )
    assert (
        model != "unigram" or "<unk>" not in second.encode(hostile_texts[0], add_special_tokens=False).tokens
    )


def test_words_without_end_and_texts_without_spaces():
    long_texts = ["ab" * 40_000, "".join(TEXTS).replace(" ", "")]
    for model in MODELS:
        train(model, lambda: [*TEXTS, *long_texts], vocab_size=500)
