"""Folders that cannot be converted are refused, and no file outside a folder is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy
from tests.beam_pipeline.tokenizer_folders import CONVERTED, write


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
def test_tokenizer_json_is_unchanged_if_the_config_agrees_with_it(name: str, save: Callable[..., Path]):
    config = {"tokenizer_class": name, "eos_token": "<|endoftext|>", "bos_token": "<s>", "unk_token": "</s>"}
    folder = save("bpe-gpt2", tokenizer_config=config)
    described = describe_tokenizer(str(folder))
    assert described.files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "file", "reason"),
    [
        (
            "NoSuch",
            "vocab.json",
            "has no tokenizer.json, and .* of the class NoSuch cannot be converted here .only A",
        ),
        (
            "ByT5Tokenizer",
            "vocab.json",
            "ByT5Tokenizer cannot be converted here .*; load the folder with the release",
        ),
        (
            "T5Tokenizer",
            "spiece.model",
            "spiece.model, .* cannot be converted as those of T5: DecodeError: Error",
        ),
        ("LlamaTokenizer", "tokenizer.model", "cannot be converted as those of Llama: DecodeError: Error"),
        ("GPT2Tokenizer", "vocab.json", "cannot be converted as those of GPT2: KeyError: 'merges.txt'"),
        ("BertTokenizer", "vocab.json", "cannot be converted as those of Bert: KeyError: 'vocab.txt'"),
    ],
)
def test_the_message_says_what_to_do_with_the_class(
    name: str, file: str, reason: str, save: Callable[..., Path]
):
    folder = save("bpe-gpt2", tokenizer_config={"tokenizer_class": name})
    (folder / "tokenizer.json").rename(folder / file)
    with pytest.raises(UsageError, match=reason):
        describe_tokenizer(str(folder))


@pytest.mark.parametrize("auto_map", ["code.MyTokenizerFast", ["code.MyTokenizerFast", None]])
def test_a_fast_class_that_is_code_may_be_the_only_one(auto_map: str | list, save: Callable[..., Path]):
    config = {"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": auto_map}}
    description = describe_tokenizer(str(save("bpe-gpt2", tokenizer_config=config)))
    assert "tokenizer.json is used as it is" in description.notes[0]


@pytest.mark.parametrize("place", ["tokenizer_config", "special_tokens_map"])
def test_a_path_in_a_config_leads_to_no_file_outside_the_folder(
    place: str, save: Callable[..., Path], tmp_path: Path
):
    (tmp_path / "secret").write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nthe-key\n")
    files = {"tokenizer_config": {"tokenizer_class": "BertTokenizer"}, "special_tokens_map": {}}
    files[place]["vocab_file"] = str(tmp_path / "secret")
    folder = save(**files)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match="cannot be converted as those of Bert"):
        describe_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("entry", ["tokenizer_file", "fast_tokenizer_files", "null"])
def test_the_folders_own_files_are_preferred_to_paths_in_its_config(
    name: str, entry: str, save: Callable[..., Path]
):
    other = save("bpe-phi2", name="other")
    (other / "tokenizer.4.0.json").write_bytes((other / "tokenizer.json").read_bytes())
    path = str(other / "tokenizer.4.0.json")
    paths = {"fast_tokenizer_files": [path]} if entry == "fast_tokenizer_files" else {"tokenizer_file": path}
    config = {"tokenizer_class": name, "eos_token": "</s>", "bos_token": "<s>", "unk_token": "</s>"}
    folder = save(tokenizer_config={**config, **(paths if entry != "null" else {"tokenizer_file": None})})
    described = describe_tokenizer(str(folder))
    check_copy(described, str(folder))
    assert described.json.encode() == (folder / "tokenizer.json").read_bytes()
    assert str(other).encode() not in b"".join(described.files.values())


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        (
            "t5",
            {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**9}},
            "extra_ids is 1000",
        ),
        (
            "bert",
            {"tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "sep_token": None}},
            "no sep_token",
        ),
        (
            "llama",
            {"tokenizer.model": b"\x0a\x05\x0a\x03\xff\xfe\xfd"},
            "cannot be converted as those of Llama",
        ),
        ("gpt2", {"merges.txt": "t h\nthe q\n"}, "cannot be loaded: "),
        ("gpt2", {"vocab.json": "[1]"}, "cannot be loaded: "),
    ],
)
def test_damaged_files_are_refused_in_one_line(name: str, change: dict, reason: str, tmp_path: Path):
    folder = write({**CONVERTED[name](), **change}, tmp_path / "folder")
    with pytest.raises(UsageError, match=reason) as caught:
        describe_tokenizer(str(folder))
    assert "\n" not in str(caught.value)
