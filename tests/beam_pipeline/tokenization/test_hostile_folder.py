"""No content of a tokenizer's folder breaks messages, the manifest or the report, or causes a traceback."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.engines.engine import check_engine
from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy
from beam_pipeline.verbs import prepare
from tests.beam_pipeline.runs import arguments

HOSTILE = "\x1b[31m\n\x9b\u202e</script><b>"
PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.fixture
def save(tmp_path: Path, make_tokenizer: Callable[[str], str]) -> Callable[..., Path]:
    def write(model: dict | None = None, **files: Any) -> Path:
        parts = json.loads(make_tokenizer("bpe-gpt2"))
        parts["model"].update(model or {})
        files = {"tokenizer": parts, "tokenizer_config": PLAIN, **files}
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        for name, value in files.items():
            (folder / f"{name}.json").write_text(json.dumps(value))
        return folder

    return write


@pytest.fixture
def save_unsupported(
    save: Callable[..., Path], make_tokenizer: Callable[[str], str]
) -> Callable[[str], Path]:
    """Saves a tokenizer without a fast engine, for a reason that quotes the text."""

    def write(text: str) -> Path:
        parts = json.loads(make_tokenizer("bpe-gpt2"))
        split = {"type": "Split", "pattern": {"String": text}, "behavior": "MergedWithNext", "invert": False}
        parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, parts["pre_tokenizer"]]}
        return save(tokenizer=parts)

    return write


def is_safe(message: str) -> bool:
    return message.isprintable() and len(message) < 1500


@pytest.mark.parametrize("text", [HOSTILE, "x" * 1_000_000])
def test_the_reason_against_an_engine_is_a_short_line(text: str, save_unsupported: Callable[[str], Path]):
    description = describe_tokenizer(str(save_unsupported(text)))
    options = {"parse_special_tokens": False, "control_ids": description.control_ids}
    reason = check_engine("auto", description.json, **options)
    assert "Split" in reason and is_safe(reason)


@pytest.mark.parametrize(
    "config",
    [
        {"tokenizer_class": HOSTILE},
        {"tokenizer_class": HOSTILE, "auto_map": {"AutoTokenizer": [None, HOSTILE]}},
        {"tokenizer_class": HOSTILE, "auto_map": {"AutoTokenizer": [HOSTILE] * 2}, HOSTILE * 1000: 1},
        *({**PLAIN, "pad_token": token} for token in (5, ["a"], {"x": 1}, {"content": 5}, "\ud800")),
        {**PLAIN, "pad_token": "x" * 1_000_000},
        {"mask_token": True},
        *({**PLAIN, "additional_special_tokens": tokens} for tokens in ([5], 7, "ab")),
        {**PLAIN, "added_tokens_decoder": [1]},
        {**PLAIN, "added_tokens_decoder": {"x": 5}},
    ],
    ids=lambda config: repr(config)[-60:],
)
def test_a_hostile_config_gives_a_short_line(config: dict, save: Callable[..., Path]):
    try:
        messages = describe_tokenizer(str(save(tokenizer_config=config))).notes
    except UsageError as error:
        messages = [str(error)]
    assert messages and all(map(is_safe, messages))


TOKEN = {
    "content": "</s>",
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "single_word": False,
    "special": True,
}
KEYS = [
    "added_tokens_decoder",
    "additional_special_tokens",
    "auto_map",
    "backend",
    "chat_template",
    "eos_token",
    "extra_special_tokens",
    "fast_tokenizer_files",
    "fix_mistral_regex",
    "from_slow",
    "image_token",
    "init_inputs",
    "model_input_names",
    "model_max_length",
    "model_specific_special_tokens",
    "pad_token",
    "padding_side",
    "slow_tokenizer_class",
    "split_special_tokens",
    "stride",
    "tokenizer_class",
    "tokenizer_file",
    "tokenizer_object",
    "unk_token",
    "vocab_file",
]
VALUES = [
    None,
    True,
    0,
    1e300,
    "x",
    "</s>",
    "BertTokenizer",
    "left",
    [],
    ["<s>"],
    [TOKEN],
    [None],
    [[]],
    [1],
    {},
]
VALUES += [{"a": "<s>"}, {"a": TOKEN}, {"1501": TOKEN}, {"x": 1}, TOKEN, "\ud800", ["\ud800"], HOSTILE]


def test_any_config_is_refused_or_its_copy_is_loaded_as_the_same(save: Callable[..., Path], tmp_path: Path):
    rng = random.Random(0)
    folder, copy_folder = save(), tmp_path / "copy"
    loaded = 0
    for _ in range(120):
        config, names = (
            {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randint(0, 3))} for _ in "ab"
        )
        config.setdefault("tokenizer_class", rng.choice(["PreTrainedTokenizerFast", "GPT2Tokenizer"]))
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "special_tokens_map.json").write_text(json.dumps(names if rng.random() < 0.3 else {}))
        try:
            description = describe_tokenizer(str(folder))
            check_copy(description, str(folder))
        except UsageError as error:
            assert is_safe(str(error)), config
            continue
        shutil.rmtree(copy_folder, ignore_errors=True)
        copy_folder.mkdir()
        for name, data in description.files.items():
            (copy_folder / name).write_bytes(data)
        assert describe_tokenizer(str(copy_folder)).files == description.files, config
        loaded += 1
    assert 20 < loaded < 100


def test_a_map_of_special_tokens_that_is_none(save: Callable[..., Path]):
    with pytest.raises(UsageError, match=r"special_tokens_map\.json does not contain a JSON object"):
        describe_tokenizer(str(save(special_tokens_map=[])))


def test_the_manifest_and_the_report_quote_no_markup_of_a_tokenizer(
    save_unsupported: Callable[[str], Path], tmp_path: Path
):
    (tmp_path / "docs.txt").write_text("one\ntwo\n")
    folder = save_unsupported(HOSTILE)
    out = tmp_path / "out"
    prepare.main(arguments(tmp_path / "docs.txt", folder, out, "--max_length", "8"))
    [engine] = read_manifest(str(out / "train"))["engines"]
    [reason] = engine["left_to_hf"]["reasons"]
    assert "Split" in reason and is_safe(reason)
    page = (out / "report.html").read_text()
    assert "</script><b>" not in page and "\x1b" not in page


def test_a_template_with_an_id_beyond_the_vocabulary_is_refused(
    save: Callable[..., Path], make_tokenizer: Callable[[str], str]
):
    parts = json.loads(make_tokenizer("bpe-gpt2"))
    size = len({*parts["model"]["vocab"], *(token["content"] for token in parts["added_tokens"])})
    parts["post_processor"] = {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["</s>", size]}
    with pytest.raises(UsageError, match=f"post-processor adds the id {size}"):
        describe_tokenizer(str(save(tokenizer=parts)))
