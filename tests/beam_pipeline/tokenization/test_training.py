"""Trained tokenizers: the same bytes each time, in files that AutoTokenizer loads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from beam_pipeline.support.errors import DataError
from beam_pipeline.tokenization.training import train

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
        text = " Any text\n\nat all: ☃ \x00 漢字  "
        assert loaded.decode(loaded(text).input_ids) == text
    else:
        ids = loaded("the test").input_ids
        assert (ids[0], ids[-1]) == (loaded.cls_token_id, loaded.sep_token_id)
        assert ("token_type_ids" in loaded("a b")) == (model == "wordpiece")


def test_a_mask_takes_the_space_before_it():
    tokenizer = train("unigram", texts, vocab_size=500).tokenizer
    masked = tokenizer.encode("import <mask>, from").tokens
    assert masked == [
        *tokenizer.encode("import").tokens[:-1],
        " <mask>",
        ",",
        *tokenizer.encode("from").tokens[1:],
    ]


@pytest.mark.parametrize("text", ["  two  spaces\t\r\nand\x0b lines \x1f\u2028here ", "\ufb01ne \u2460 Ａ"])
def test_unigram_text_is_folded(text: str):
    tokenizer = train("unigram", texts, vocab_size=500).tokenizer
    normalized_text = {"  two": "two spaces and lines here", "\ufb01ne": "fine 1 A"}[
        text.split(" ")[0] or "  two"
    ]
    assert tokenizer.encode(text).ids == tokenizer.encode(normalized_text).ids


def test_lowercase_folds_case_and_accents():
    tokenizer = train("wordpiece", texts, vocab_size=500, lowercase=True).tokenizer
    assert tokenizer.encode("IMPORT Über").ids == tokenizer.encode("import uber").ids
    cased = train("wordpiece", texts, vocab_size=500).tokenizer
    assert cased.encode("IMPORT").ids != cased.encode("import").ids


@pytest.mark.parametrize("model", MODELS)
def test_more_tokens_than_the_sample_supports(model: str):
    with pytest.raises(DataError, match=r"--vocab_size 90000: the sample supports \d+ tokens at most"):
        train(model, texts, vocab_size=90000)
    smaller_tokenizer = train(model, texts, vocab_size=90000, allow_smaller=True).tokenizer
    assert 500 < smaller_tokenizer.get_vocab_size() < 90000
    train(model, texts, vocab_size=smaller_tokenizer.get_vocab_size())  # as the message suggests


@pytest.mark.parametrize("model", ["unigram", "wordpiece"])
def test_fewer_tokens_than_characters(model: str):
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 600)))
    with pytest.raises(DataError, match=r"--vocab_size 400: too small .* need \d+") as error:
        train(model, lambda: [letters] * 3, vocab_size=400)
    min_vocab_size = int(str(error.value).rpartition(" ")[2])
    train(model, lambda: [letters] * 3, vocab_size=min_vocab_size + 2, allow_smaller=True)


@pytest.mark.parametrize("model", MODELS)
def test_literals_of_special_tokens_in_the_sample_are_text(model: str):
    """A web page about tokenizers may contain `<mask>`, which is neither learnt nor taken for the special token."""
    hostile_texts = ["<s> a <mask> b </s> <pad> [MASK] [CLS] <|endoftext|> <|mask|> <unk> [UNK]"] * 50
    tokenizer = train(model, lambda: [*TEXTS, *hostile_texts], vocab_size=500, allow_smaller=True).tokenizer
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
