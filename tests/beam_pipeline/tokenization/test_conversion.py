"""Tokenizers that AutoTokenizer makes in memory: what is written gives the same ids, or is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, LlamaTokenizerFast

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.conversion import converter
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy

TOKEN = "<|endoftext|>"
TEXTS = [template.replace("{}", TOKEN) for template in ("x{}y", "a {} b", "{}y", "x{}", "{}{}")]


@pytest.fixture(scope="module")
def model() -> bytes:
    """A model of SentencePiece with the token as a control token, as in Llama-like tokenizers."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"the people of number {number} said hello" for number in range(100)]),
        model_writer=buffer,
        model_type="bpe",
        vocab_size=345,
        byte_fallback=True,
        control_symbols=TOKEN,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return buffer.getvalue()


@pytest.mark.parametrize("own_token", [True, False])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("legacy", [True, False])
def test_added_tokens_are_found_where_auto_tokenizer_finds_them(
    own_token: bool, special: bool, legacy: bool, model: bytes, tmp_path: Path
):
    """With `add_prefix_space`, AutoTokenizer ignores tokenizer.json and converts the model of SentencePiece."""
    token = TOKEN if own_token else "<new>"
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model)
    saved = LlamaTokenizerFast.from_pretrained(folder, legacy=legacy)
    saved.add_tokens([AddedToken("<new>", special=special, normalized=True)])
    saved.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for entry in config["added_tokens_decoder"].values():
        if entry["content"] == token:
            entry.update(normalized=True, special=special)
    config["add_prefix_space"] = True
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").unlink()
    texts = [text.replace(TOKEN, token) for text in TEXTS]
    expected = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
    description = describe_tokenizer(str(folder))
    check_copy(description, str(folder))
    is_unchanged = description.json.encode() == (folder / "tokenizer.json").read_bytes()
    assert description.converted_by == (None if is_unchanged else converter())
    assert not (is_unchanged and own_token and legacy)
    core = Tokenizer.from_str(description.json)
    assert [encoding.ids for encoding in core.encode_batch(texts)] == expected
    copy_folder = tmp_path / "copy"
    copy_folder.mkdir()
    for name, data in description.files.items():
        (copy_folder / name).write_bytes(data)
    assert AutoTokenizer.from_pretrained(copy_folder)(texts)["input_ids"] == expected
    assert describe_tokenizer(str(copy_folder)).files == description.files


def test_what_no_tokenizer_json_expresses_is_refused(save: Callable[..., Path]):
    """The config makes BERT's class lower-case text, but not the token, so no text has it any more."""

    def add(tokenizer: Tokenizer) -> None:
        tokenizer.add_tokens([AddedToken("NewWord", normalized=True)])

    folder = save(
        "wordpiece", add, tokenizer_config={"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    )
    with pytest.raises(
        UsageError, match=r"ids that its tokenizer.json could not give.* token 'NewWord' to false"
    ):
        describe_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
def test_tokenizer_json_is_unchanged_if_auto_tokenizer_agrees_with_it(name: str, save: Callable[..., Path]):
    config = {"tokenizer_class": name, "eos_token": "<|endoftext|>", "bos_token": "<s>", "unk_token": "</s>"}
    folder = save("bpe-gpt2", tokenizer_config=config)
    description = describe_tokenizer(str(folder))
    assert description.files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    assert description.converted_by is None


@pytest.mark.parametrize(
    ("files", "file", "reason"),
    [
        (
            {"tokenizer_class": "NoSuch"},
            None,
            "has no class NoSuch; to use tokenizer.json as it is, set tokenizer_cl",
        ),
        ({"tokenizer_class": "NoSuch"}, "vocab.json", "has no class NoSuch$"),
        (
            {"tokenizer_class": "ByT5Tokenizer"},
            None,
            "ByT5Tokenizer has no fast version .*; to use tokenizer.json as",
        ),
        (
            {"tokenizer_class": "ByT5Tokenizer"},
            "vocab.json",
            "has no fast version .*; if transformers 5 has one",
        ),
        (
            {"tokenizer_class": "T5Tokenizer"},
            "spiece.model",
            "neither SentencePiece nor tiktoken can read .*spiece.m",
        ),
        (
            {"tokenizer_class": "LlamaTokenizer"},
            "tokenizer.model",
            "neither SentencePiece nor tiktoken can read",
        ),
    ],
)
def test_the_message_says_what_to_do_with_the_class(
    files: dict, file: str | None, reason: str, save: Callable[..., Path]
):
    folder = save("bpe-gpt2", tokenizer_config=files)
    if file is not None:
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
    with pytest.raises(UsageError, match="cannot be loaded"):
        describe_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("entry", ["tokenizer_file", "fast_tokenizer_files", "null"])
def test_the_folders_own_files_are_preferred_to_paths_in_its_config(
    name: str, entry: str, save: Callable[..., Path]
):
    other_folder = save("bpe-phi2", name="other")
    (other_folder / "tokenizer.4.0.json").write_bytes((other_folder / "tokenizer.json").read_bytes())
    path = str(other_folder / "tokenizer.4.0.json")
    paths = {"fast_tokenizer_files": [path]} if entry == "fast_tokenizer_files" else {"tokenizer_file": path}
    config = {"tokenizer_class": name, "eos_token": "</s>", "bos_token": "<s>", "unk_token": "</s>"}
    folder = save(tokenizer_config={**config, **(paths if entry != "null" else {"tokenizer_file": None})})
    description = describe_tokenizer(str(folder))
    check_copy(description, str(folder))
    assert description.json.encode() == (folder / "tokenizer.json").read_bytes()
    assert str(other_folder).encode() not in b"".join(description.files.values())
