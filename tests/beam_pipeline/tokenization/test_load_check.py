"""The tokenizer in a dataset is one that AutoTokenizer loads with the same ids, or the run does not begin."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization import load_check
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments, defects
from tests.beam_pipeline.training import train

PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}


def of_version_5(name: str, **entries: Any) -> dict:
    """Returns a config as transformers 5 writes it, and 4.57 cannot read or would read differently."""
    state = {"backend": "tokenizers", "is_local": True, "local_files_only": False}
    return {**state, "eos_token": "</s>", "tokenizer_class": name, **entries}


@pytest.mark.parametrize(
    ("kind", "config", "control"),
    [
        ("bpe-gpt2", of_version_5("TokenizersBackend", extra_special_tokens=["<s>"]), "<s>"),
        ("bpe-gpt2", of_version_5("GPT2Tokenizer", add_prefix_space=True, extra_special_tokens=[]), "</s>"),
        ("bpe-gpt2", {**PLAIN, "extra_special_tokens": [{"content": "<s>", "special": True}]}, "<s>"),
        (
            "bpe-gpt2",
            of_version_5("Gemma4Tokenizer", model_specific_special_tokens={"image_token": "<s>"}),
            "<s>",
        ),
        ("bpe-prefix", of_version_5("TokenizersBackend"), "</s>"),
        ("sentencepiece", of_version_5("LlamaTokenizer", add_prefix_space=True, bos_token="<s>"), "<s>"),
        ("wordpiece", of_version_5("BertTokenizer", do_lower_case=True, eos_token="[SEP]"), "[SEP]"),
        ("unigram", of_version_5("T5Tokenizer", extra_special_tokens=["<s>"]), "<s>"),
    ],
)
def test_what_transformers_5_saves_is_read_as_it_is(
    kind: str, config: dict, control: str, save: Callable[..., Path], tmp_path: Path
):
    folder = save(kind, tokenizer_config=config)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))  # (5 would choose Qwen's class)
    described = describe_tokenizer(str(folder))
    check_copy(described, str(folder))
    assert described.json.encode() == (folder / "tokenizer.json").read_bytes()
    core = Tokenizer.from_str(described.json)
    assert core.token_to_id(control) in described.control_ids
    copied = tmp_path / "copy"
    copied.mkdir()
    for name, data in described.files.items():
        (copied / name).write_bytes(data)
    assert "config.json" not in described.files
    auto = AutoTokenizer.from_pretrained(copied)
    assert control in auto.all_special_tokens
    texts = ["Hello World", " two  spaces", f"x{control}y"]
    assert auto(texts)["input_ids"] == [core.encode(text).ids for text in texts]
    assert describe_tokenizer(str(copied)).files == described.files


def test_a_byte_order_mark_does_not_reach_the_dataset(save: Callable[..., Path], tmp_path: Path):
    folder = save(tokenizer_config=PLAIN, special_tokens_map={"eos_token": "</s>"})
    for path in folder.iterdir():
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    (tmp_path / "docs.txt").write_text("one\ntwo\n")
    out = tmp_path / "out"
    prepare.main(arguments(tmp_path / "docs.txt", folder, out, "--max_length", "8"))
    assert AutoTokenizer.from_pretrained(out / "tokenizer").eos_token == "</s>"
    assert not defects(out)


def test_a_tokenizer_of_train_tokenizer_is_not_loaded_again(
    tmp_path: Path, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    """Importing transformers would take longer than preparing a few megabytes."""
    trained = train("bpe", lambda: ["some text"] * 9, vocab_size=300)
    folder = tmp_path / "trained"
    folder.mkdir()
    for name, data in {**trained.files(), "tokenmill.json": b"{}"}.items():
        (folder / name).write_bytes(data)
    described = describe_tokenizer(str(folder))
    monkeypatch.setattr(load_check, "_load", lambda folder: pytest.fail("loaded"))
    check_copy(described, str(folder))
    with pytest.raises(pytest.fail.Exception):
        check_copy(describe_tokenizer(str(save(tokenizer_config={**PLAIN, "key": 1}))), "other")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"padding_side": "up"}, "cannot load it: ValueError: Padding side should be"),
        ({"extra_special_tokens": "<s>"}, "extra_special_tokens in tokenizer_config.json is not a token"),
        ({"chat_template": [1]}, "cannot load it: TypeError"),
    ],
)
def test_a_tokenizer_that_nobody_can_load_is_refused_before_the_run(
    config: dict, reason: str, save: Callable[..., Path], tmp_path: Path
):
    folder = save(tokenizer_config={**PLAIN, **config})
    (tmp_path / "docs.txt").write_text("one\n")
    out = tmp_path / "out"
    with pytest.raises(UsageError, match=reason):
        prepare.main(arguments(tmp_path / "docs.txt", folder, out))
    assert not out.exists()


def test_other_ids_and_other_roles_are_refused(save: Callable[..., Path]):
    described = describe_tokenizer(str(save(tokenizer_config={**PLAIN, "eos_token": "</s>"})))
    with pytest.raises(UsageError, match="gives its eos token the id 1501 instead of 5"):
        check_copy(replace(described, special_token_ids={**described.special_token_ids, "eos": 5}), "x")
    config = json.dumps({**PLAIN, "additional_special_tokens": ["the"]}).encode()
    changed = {**described.files, "tokenizer_config.json": config}
    roles = dict.fromkeys(described.special_token_ids)
    with pytest.raises(UsageError, match=r"not give the ids of its tokenizer.json: 'xthey' is"):
        check_copy(replace(described, files=changed, special_token_ids=roles), "x")


def test_a_pad_token_that_was_an_ordinary_token_becomes_an_added_one(save: Callable[..., Path]):
    folder = save("bpe-gpt2", tokenizer_config=PLAIN)
    token = next(
        token for token in Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() if len(token) > 3
    )
    described = describe_tokenizer(str(folder), token)
    check_copy(described, str(folder))
    assert described.special_token_ids["pad"] in described.control_ids
    assert described.vocab_size == describe_tokenizer(str(folder)).vocab_size
