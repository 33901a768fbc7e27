"""The files of a folder: which are read, what is kept. If loading fails, a one-line message says why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from beam_pipeline.engines.engine import make_engine
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import TokenizerDescription, describe_tokenizer
from beam_pipeline.tokenization.tokenizer_json import load_tokenizer

PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
TEXTS = ["hello world", " two  spaces", "one<s>two</s> <new>x", "漢字 naïve\n", ""]


def test_a_tokenizer_is_loaded_once_and_again_if_its_file_changes(save: Callable[..., Path], tmp_path: Path):
    folder = save(tokenizer_config=PLAIN)
    load_tokenizer.cache_clear()
    description = describe_tokenizer(str(folder))
    make_engine("auto", description.json, control_ids=description.control_ids)
    second = describe_tokenizer(str(copy(description, tmp_path / "copy")))
    assert load_tokenizer.cache_info().misses == 1
    assert second.json == description.json
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["<new>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert describe_tokenizer(str(folder)).vocab_size == description.vocab_size + 1


def copy(description: TokenizerDescription, folder: Path) -> Path:
    folder.mkdir()
    for name, data in description.files.items():
        (folder / name).write_bytes(data)
    return folder


def encode(description: TokenizerDescription, texts: list[str]) -> list[list[int]]:
    engine = make_engine("auto", description.json, parse_special_tokens=True)
    ids, lengths = engine.encode_batch(texts)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def by_auto_tokenizer(folder: Path) -> list[list[int]]:
    return AutoTokenizer.from_pretrained(folder)(TEXTS, add_special_tokens=False)["input_ids"]


def _prefix_space(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)


@pytest.mark.parametrize("name", ["tokenizer", "gpt2", "bert-base-uncased", "my llama"])
def test_a_folder_with_only_tokenizer_json(name: str, save: Callable[..., Path], tmp_path: Path):
    folder = save("bpe-gpt2", _prefix_space, name)
    description = describe_tokenizer(str(folder))
    (note,) = description.notes
    assert "no file defines the roles of its special tokens" in note
    assert "bos <s>, eos </s>" in note
    assert description.special_token_ids["eos"] == 1501
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = [encoding.ids for encoding in whole.encode_batch(TEXTS, add_special_tokens=False)]
    assert encode(description, TEXTS) == expected
    assert by_auto_tokenizer(copy(description, tmp_path / "copy")) == expected


def test_the_class_of_transformers_5(save: Callable[..., Path], tmp_path: Path):
    config = {"tokenizer_class": "TokenizersBackend", "eos_token": "</s>", "extra_special_tokens": ["<s>"]}
    description = describe_tokenizer(str(save(tokenizer_config=config)))
    assert {1500, 1501} <= description.control_ids
    copied = copy(description, tmp_path / "copy")
    assert by_auto_tokenizer(copied) == encode(description, TEXTS)


def test_saved_padding_and_truncation_play_no_role(save: Callable[..., Path], tmp_path: Path):
    def limit(tokenizer: Tokenizer) -> None:
        tokenizer.enable_padding(pad_id=1502, pad_token="<|endoftext|>", length=64)
        tokenizer.enable_truncation(8)

    text = "hello world " * 20
    for name, files in (("bare", {}), ("plain", {"tokenizer_config": PLAIN})):
        description = describe_tokenizer(str(save("bpe-gpt2", limit, name, **files)))
        assert description.template.prefix == description.template.suffix == ()
        (ids,) = encode(description, [text])
        assert len(ids) > 40 and 1502 not in ids
        AutoTokenizer.from_pretrained(copy(description, tmp_path / f"copy of {name}"))
    assert description.special_token_ids["pad"] == 1502  # AutoTokenizer's id


def _renamed(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "tokenizer.json").rename(folder / name)


def _cut(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:40])

    return change


def _with_a_huge_id(folder: Path) -> None:
    parts = json.loads((folder / "tokenizer.json").read_text())
    parts["model"]["vocab"]["forged"] = 1 << 31
    (folder / "tokenizer.json").write_text(json.dumps(parts))


CUSTOM = {"tokenizer_class": "MyTokenizer", "auto_map": {"AutoTokenizer": ["my_code.MyTokenizer", None]}}
FAST = {**CUSTOM, "auto_map": {"AutoTokenizer": ["my_code.MyTokenizer", "my_code.MyTokenizerFast"]}}


@pytest.mark.parametrize(
    ("files", "change", "reason"),
    [
        ({"tokenizer_config": PLAIN}, _cut("tokenizer.json"), "tokenizer.json cannot be loaded"),
        ({"tokenizer_config": PLAIN}, _with_a_huge_id, "token 'forged' .* has the id 2,147,483,648, and ids"),
        ({"tokenizer_config": PLAIN}, _cut("tokenizer_config.json"), "tokenizer_config.json is not JSON"),
        ({"tokenizer_config": [1]}, None, "tokenizer_config.json does not contain a JSON object"),
        ({"tokenizer_config": {**PLAIN, "added_tokens_decoder": {"x": 1}}}, None, "added_tokens_decoder"),
        (
            {"tokenizer_config": {"model_max_length": 5}},
            _renamed("vocab.txt"),
            "no tokenizer.json, and neither",
        ),
        ({}, _renamed("cl100k.tiktoken"), "cl100k.tiktoken alone does not define a tokenizer; convert"),
        (
            {},
            _renamed("tekken.json"),
            "tekken.json is the format of mistral_common.*; use the tokenizer.json",
        ),
        (
            {"tokenizer_config": CUSTOM},
            None,
            "MyTokenizer is code .auto_map., which is not run, and has no fast",
        ),
        (
            {"tokenizer_config": CUSTOM},
            _renamed("spiece.json"),
            "code in its repository .auto_map., which is",
        ),
        (
            {"tokenizer_config": {**FAST, "do_lower_case": True}},
            None,
            "its options may change ids .do_lower_case",
        ),
        (
            {"tokenizer_config": {**FAST, "add_bos_token": True}},
            None,
            "add_bos_token is true, but .* no such token",
        ),
        ({"config": {"model_type": "mine", "auto_map": CUSTOM["auto_map"]}}, None, "which is not run"),
        ({"tokenizer_config": {**FAST, "tokenizer_class": ["x"]}}, None, "tokenizer_class is not a name"),
        ({"tokenizer_config": {**FAST, "auto_map": 5}}, None, "not run, and has no fast version"),
        (
            {"tokenizer_config": {**FAST, "auto_map": {"AutoTokenizer": {"x": 1}}}},
            None,
            "not run, and has no",
        ),
        (
            {"tokenizer_config": PLAIN, "added_tokens": {"<new>": "x"}},
            None,
            "x in added_tokens.json is not an id",
        ),
        ({"tokenizer_config": {**FAST, "added_tokens_decoder": [5]}}, None, "added_tokens_decoder"),
        ({"config": {"model_type": "gpt2"}}, _renamed("vocab.txt"), "cannot be converted as those of GPT2"),
    ],
)
def test_a_folder_that_cannot_be_loaded_says_why_in_one_line(
    files: dict,
    change: Callable[[Path], None] | None,
    reason: str,
    save: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
):
    folder = save(**files)
    (folder / "my_code.py").write_text("raise SystemExit('code of the folder was run')\n")
    if change is not None:
        change(folder)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on standard input"))
    with pytest.raises(UsageError) as caught:
        describe_tokenizer(str(folder))
    message = str(caught.value)
    assert re.search(reason, message), message
    assert str(folder) in message and "\n" not in message and len(message) < 700


@pytest.mark.parametrize("bos", [True, False])
def test_the_tokenizer_json_of_a_fast_class_that_is_code_is_used_without_the_code(bos, save, tmp_path):
    """As in InternLM 2's folder."""
    config = {
        **FAST,
        "add_bos_token": bos,
        "add_eos_token": False,
        "bos_token": "<s>",
        "sp_model_kwargs": None,
    }

    def change(tokenizer: Tokenizer) -> None:
        if bos:
            bos_id = tokenizer.token_to_id("<s>")
            tokenizer.post_processor = processors.TemplateProcessing(
                "<s> $0", special_tokens=[("<s>", bos_id)]
            )

    lacking = {"9999": {"content": "<|plugin|>", "special": True}}
    folder = save(
        "sentencepiece-internlm", change, tokenizer_config={**config, "added_tokens_decoder": lacking}
    )
    (folder / "my_code.py").write_text("raise SystemExit('code of the folder was run')\n")
    description = describe_tokenizer(str(folder))
    assert "its class MyTokenizer is code (auto_map), which is not run" in description.notes[0]
    assert "lacks 1 token of other files (<|plugin|> (9999)): they get new ids" in description.notes[1]
    own = json.loads((folder / "tokenizer.json").read_text())
    assert json.loads(description.json)["model"] == own["model"]
    auto = AutoTokenizer.from_pretrained(copy(description, tmp_path / "copy"))
    expected = [auto(text).input_ids for text in TEXTS]
    actual = [[*description.template.prefix, *ids] for ids in encode(description, TEXTS)]
    assert actual == expected
    assert bool(description.template.prefix) == bos and auto.bos_token == "<s>"


@pytest.mark.parametrize("named", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_a_vocabulary_with_unused_ids_prints_a_few_of_them(named: str, save, capfd):
    folder = save(tokenizer_config={"tokenizer_class": named})
    path = folder / "tokenizer.json"
    parts = json.loads(path.read_text())
    vocab = parts["model"]["vocab"]
    parts["model"]["vocab"] = {key: number + (5000 if number >= 700 else 0) for key, number in vocab.items()}
    for token in parts["added_tokens"]:  # (HF gives them the first unused ids)
        token["id"] += 5000
    path.write_text(json.dumps(parts))
    description = describe_tokenizer(str(folder))
    (note,) = [note for note in description.notes if "no token" in note]
    assert f"4,997 ids of its {description.vocab_size:,} (700, 701, 702, …) have no token" in note
    capfd.readouterr()  # to be able to fail: saving prints all of them
    Tokenizer.from_file(str(path)).to_str()
    assert "704, 705" in capfd.readouterr().out or not tokenizers.__version__.startswith("0.22.")
    describe_tokenizer(str(folder))
    shown = capfd.readouterr()
    assert "704" not in shown.out + shown.err
    print("stdout works again")
    assert "works again" in capfd.readouterr().out


def test_the_vocabulary_keeps_its_text(save: Callable[..., Path]):
    """`tokenizers` reads scores with an error of one unit in the last place, so a rewritten text changes the scores."""
    folder = save("unigram", tokenizer_config={**PLAIN, "cls_token": "<new>"})
    path = folder / "tokenizer.json"
    scores = [-2.0122928619384766, -3.4657359027997265, -11.618455886840821, -7.2947406768798830]
    parts = json.loads(path.read_text())
    for number, piece in enumerate(parts["model"]["vocab"]):
        piece[1] = scores[number % 4] - number / 7919
    path.write_text(json.dumps(parts))
    saved = Tokenizer.from_file(str(path)).to_str()
    assert json.loads(saved)["model"] != parts["model"]  # this test can fail
    description = describe_tokenizer(str(folder))
    assert b"<new>" in description.files["tokenizer.json"]
    assert json.loads(description.json)["model"] == parts["model"]
    assert load_tokenizer(description.json).parsed["model"] == parts["model"]


def test_dropout_is_refused(save: Callable[..., Path]):
    def drop(tokenizer: Tokenizer) -> None:
        tokenizer.model.dropout = 0.1

    with pytest.raises(UsageError, match=r"drops merges at random \(dropout 0.1"):
        describe_tokenizer(str(save("bpe-gpt2", drop, tokenizer_config=PLAIN)))


@pytest.mark.parametrize("kind", ["bpe-gpt2", "bpe-llama3"])
@pytest.mark.parametrize("engine", ["auto", "hf"])
def test_byte_level_tokens_that_no_text_has_are_not_emitted(
    engine: str, kind: str, make_tokenizer: Callable[[str], str], hard_texts: list[str]
):
    """Keys outside the byte alphabet, and words that no merges produce, are never emitted."""
    parts = json.loads(make_tokenizer(kind))
    size = len(parts["model"]["vocab"])
    parts["added_tokens"] = []
    unused = [" " * 9, " zzqx", "漢字漢字", "нет", "\n" * 5]
    unused += ["Ġzzqx", "zzqx", "<s>"] if kind == "bpe-gpt2" else []  # the other kind ignores merges
    unused = [key for key in unused if key not in parts["model"]["vocab"]]
    parts["model"]["vocab"].update({key: size + number for number, key in enumerate(unused)})
    texts = [*hard_texts[:300], *unused, *(f"a{key}" for key in unused), "нет zzqx b"]
    tokenizer = Tokenizer.from_str(json.dumps(parts))
    expected = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    assert max(max(ids, default=0) for ids in expected) < size
    made = make_engine(engine, json.dumps(parts))
    assert made.name == ("native" if engine == "auto" else "hf")
    ids, lengths = made.encode_batch(texts)
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected


def test_a_byte_level_vocabulary_may_lack_some_bytes(hard_texts: list[str]):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:200]
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = [encoding.ids for encoding in tokenizer.encode_batch(hard_texts, add_special_tokens=False)]
    engine = make_engine("auto", tokenizer.to_str())
    assert engine.name == "native"
    ids, lengths = engine.encode_batch(hard_texts)
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_a_file_that_is_too_large_is_named_with_its_size_and_the_limit(save: Callable[..., Path], name: str):
    folder = save(tokenizer_config=PLAIN)
    with (folder / "corpus.txt").open("wb") as file:
        file.truncate(300 << 20)
    assert "corpus.txt" not in describe_tokenizer(str(folder)).files
    with (folder / name).open("wb") as file:
        file.truncate((256 << 20) + 1)
    with pytest.raises(
        UsageError, match=f"{name} has 268 MB, and a tokenizer's file may have at most 268 MB"
    ):
        describe_tokenizer(str(folder))
