"""A folder gives the same ids and the same bytes with every release of transformers, and without it."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from beam_pipeline.engines.engine import make_engine
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import TokenizerDescription, describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy
from beam_pipeline.tokenization.tokenizer_classes import KNOWN_CLASSES
from tests.beam_pipeline.tokenizer_folders import AS_IT_IS, CHANGED, CONVERTED, FOLDERS, TEXTS, write
from tokenmill_reader.format.names import SPECIAL_NAMES

_OF_VERSION_4 = int(transformers.__version__.split(".")[0]) == 4

# The first digits of the SHA-256 of all files in OUT/tokenizer.
DIGESTS = {
    "bare": "0fa2f715",
    "llama with bos": "3732729e",
    "llama of digits": "95484625",
    "llama of sentencepiece": "9851e793",
    "gpt2 with prefix space": "9147cb57",
    "plain with prefix space": "052601a0",
    "plain with bos options": "26803171",
    "tokens that strip": "ef115c89",
    "other flags in the config": "7bfee875",
    "t5 with other normalizers": "ba45a5cb",
    "albert without a template": "871c77c9",
    "cased bert": "084e38c3",
    "unknown class": "26803171",
    "slow class": "b9cea0e7",
    "code": "26803171",
    "code beside a known class": "b01a5e50",
    "saved by transformers 5": "cc866af0",
    "padding and truncation": "a618652e",
    "bos in the config": "9e928978",
    "no bos in the config": "1cec7bde",
    "eos in the config": "07d104ca",
    "lower case in the config": "0e45d88e",
    "prefix space in the config": "304c2b56",
    "roles that are missing": "a1da920e",
    "tokens that are missing": "f857910e",
    "tokens in files of their own": "90522c69",
    "converted gpt2": "fe3ce329",
    "converted gpt2 by its model": "936bb0e6",
    "converted opt": "e2f2b561",
    "converted roberta": "b196a680",
    "converted bart": "0abae22f",
    "converted bert": "1210a2d6",
    "converted cased bert": "1b70e76f",
    "converted electra by its model": "210e9ff5",
    "converted bert with new tokens": "f6a6a360",
    "converted t5": "9af607e3",
    "converted mt5": "3a6590ab",
    "converted xlm-roberta": "ce4bc122",
    "converted albert": "cfac89e7",
    "converted albert with accents": "27cf9931",
    "converted deberta": "b83c74ae",
    "converted deberta of words": "d3f44a87",
    "converted llama": "52259d9c",
    "converted llama without legacy": "63c2e5fe",
    "converted llama without prefix space": "794cd2fb",
}

# A text, and its tokens.
CHANGED_TOKENS = {
    "bos in the config": ("the cat", ["<s>", "the", "Ġ", "cat"]),
    "no bos in the config": ("the cat", ["the", "Ġ", "cat"]),
    "eos in the config": ("the cat", ["<s>", "the", "Ġ", "cat", "</s>"]),
    "lower case in the config": ("THE Ü", ["the", "[UNK]"]),
    "prefix space in the config": ("the cat", ["Ġ", "the", "Ġ", "cat"]),
    "roles that are missing": ("the<new>cat<pin>", ["the", "<new>", "cat", "<pin>"]),
    "tokens that are missing": ("the <new> cat", ["the", " <new> ", "cat"]),
    "tokens in files of their own": ("the <mask>cat <new>", ["the", " <mask>", "cat", "Ġ", "<new>"]),
}


def encode(tokenizer: Tokenizer, texts: Sequence[str] = TEXTS) -> list[list[int]]:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def copy(described: TokenizerDescription, folder: Path) -> Path:
    folder.mkdir()
    for name, data in described.files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("name", FOLDERS)
def test_the_dataset_gets_the_same_bytes_and_auto_tokenizer_gives_their_ids(name: str, tmp_path: Path):
    """The engine's ids, those of `tokenizers` and those of the installed transformers are the same."""
    described = describe_tokenizer(str(write(FOLDERS[name](), tmp_path / "folder")))
    check_copy(described, "folder")
    data = b"".join(name.encode() + data for name, data in sorted(described.files.items()))
    assert hashlib.sha256(data).hexdigest()[:8] == DIGESTS.get(name)
    copied = copy(described, tmp_path / "copy")
    auto, expected = AutoTokenizer.from_pretrained(copied), encode(Tokenizer.from_str(described.json))
    assert auto(TEXTS)["input_ids"] == expected
    assert {role: getattr(auto, f"{role}_token_id") for role in SPECIAL_NAMES} == described.special_token_ids
    assert len(auto) == described.vocab_size
    ids, lengths = make_engine("auto", described.json, parse_special_tokens=True).encode_batch(TEXTS)
    template = described.template
    assert [
        [*template.prefix, *part.tolist(), *template.suffix]
        for part in np.split(ids, np.cumsum(lengths)[:-1])
    ] == expected
    assert describe_tokenizer(str(copied)).files == described.files


@pytest.mark.parametrize("name", AS_IT_IS)
def test_the_ids_are_those_of_tokenizer_json(name: str, tmp_path: Path):
    folder = write(AS_IT_IS[name](), tmp_path / "folder")
    described = describe_tokenizer(str(folder))
    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert encode(Tokenizer.from_str(described.json)) == encode(original)
    if name != "padding and truncation":
        assert described.json.encode() == (folder / "tokenizer.json").read_bytes()


def test_transformers_gives_other_ids_for_some_of_these_folders(tmp_path: Path):
    """Otherwise, the tests above could not fail."""
    folder = write(AS_IT_IS["gpt2 with prefix space"](), tmp_path / "folder")
    original = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"] != encode(original)


@pytest.mark.parametrize("name", CHANGED)
def test_tokenizer_json_gets_what_the_config_says(name: str, tmp_path: Path):
    described = describe_tokenizer(str(write(CHANGED[name](), tmp_path / "folder")))
    text, tokens = CHANGED_TOKENS[name]
    assert Tokenizer.from_str(described.json).encode(text).tokens == tokens


@pytest.mark.skipif(not _OF_VERSION_4, reason="transformers 5 converts these folders to other tokenizers")
@pytest.mark.parametrize("name", CONVERTED)
def test_a_vocabulary_is_converted_as_by_transformers_4(name: str, tmp_path: Path):
    folder = write(CONVERTED[name](), tmp_path / "folder")
    described = describe_tokenizer(str(folder))
    auto = AutoTokenizer.from_pretrained(folder)
    assert encode(Tokenizer.from_str(described.json)) == auto(TEXTS)["input_ids"]
    assert len(auto) == described.vocab_size
    assert {role: getattr(auto, f"{role}_token_id") for role in SPECIAL_NAMES} == described.special_token_ids
    config = json.loads(described.files["tokenizer_config.json"])
    assert config["model_input_names"] == list(auto.model_input_names)


@pytest.mark.skipif(not _OF_VERSION_4, reason="the table is that of transformers 4")
def test_the_table_of_classes_has_the_tokens_and_inputs_of_transformers_4():
    for name, known in KNOWN_CLASSES.items():
        fast = getattr(transformers, f"{name}TokenizerFast")
        defaults = inspect.signature(fast if name != "MT5" else transformers.T5TokenizerFast).parameters
        roles = {
            role: defaults[f"{role}_token"].default for role in SPECIAL_NAMES if f"{role}_token" in defaults
        }
        assert known.roles == {role: token for role, token in roles.items() if token is not None}, name
        assert known.has_token_types == ("token_type_ids" in fast.model_input_names), name


def test_a_bos_token_that_no_file_names_is_an_error(tmp_path: Path):
    files = dict(AS_IT_IS["llama of digits"]())
    files["tokenizer_config.json"] = {
        "tokenizer_class": "LlamaTokenizer",
        "add_eos_token": True,
        "eos_token": None,
    }
    with pytest.raises(
        UsageError, match=r"add_eos_token is true .* no file names the eos_token; add it, or remove"
    ):
        describe_tokenizer(str(write(files, tmp_path / "folder")))


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("unknown class", "used as it is, without what NoSuchTokenizer may change"),
        ("plain with bos options", "ignores add_bos_token and add_eos_token: its tokenizer.json says which"),
        (
            "code",
            "its class MyTokenizer is code .auto_map., which is not run; tokenizer.json is used as it is",
        ),
        ("bare", "no file defines the roles of its special tokens"),
    ],
)
def test_a_note_says_what_was_ignored(name: str, note: str, tmp_path: Path):
    described = describe_tokenizer(str(write(AS_IT_IS[name](), tmp_path / "folder")))
    assert re.search(note, " ".join(described.notes))


def test_a_token_that_cannot_have_its_number_gets_another_and_a_note(tmp_path: Path):
    files = {**AS_IT_IS["llama with bos"](), "added_tokens.json": {"<new>": 9999}}
    described = describe_tokenizer(str(write(files, tmp_path / "folder")))
    assert "lacks 1 token of other files (<new> (9999)): they get new ids" in " ".join(described.notes)
    assert described.vocab_size < 400


def test_no_folder_needs_transformers(tmp_path: Path):
    """It is an optional dependency."""
    folders = [write(files(), tmp_path / str(number)) for number, files in enumerate(FOLDERS.values())]
    program = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from beam_pipeline.tokenization.description import describe_tokenizer\n"
        "from beam_pipeline.tokenization.load_check import check_copy\n"
        "for folder in sys.argv[1:]:\n"
        "    described = describe_tokenizer(folder)\n"
        "    check_copy(described, folder)\n"
    )
    subprocess.run([sys.executable, "-c", program, *folders], check=True)
