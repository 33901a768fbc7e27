"""What a tokenizer's folder contains cannot break messages, the manifest or the report, and has no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline import prepare
from beam_pipeline.dataset.manifest import read_manifest
from beam_pipeline.errors import UsageError
from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.engine import check_engine
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


def is_safe(message: str) -> bool:
    return message.isprintable() and len(message) < 1500


@pytest.mark.parametrize("text", [HOSTILE, "x" * 1_000_000])
def test_the_reason_against_an_engine_is_a_short_line(text: str, save: Callable[..., Path]):
    described = describe_tokenizer(str(save({"end_of_word_suffix": text})))
    options = {"parse_special_tokens": False, "control_ids": described.control_ids}
    reason = check_engine("auto", described.json, **options)
    assert "end_of_word_suffix" in reason and is_safe(reason)


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


def test_a_map_of_special_tokens_that_is_none(save: Callable[..., Path]):
    with pytest.raises(UsageError, match=r"special_tokens_map\.json does not contain a JSON object"):
        describe_tokenizer(str(save(special_tokens_map=[])))


def test_the_manifest_and_the_report_quote_no_markup_of_a_tokenizer(
    save: Callable[..., Path], tmp_path: Path
):
    (tmp_path / "docs.txt").write_text("one\ntwo\n")
    folder = save({"end_of_word_suffix": HOSTILE})
    out = tmp_path / "out"
    prepare.main(arguments(tmp_path / "docs.txt", folder, out, "--max_length", "8"))
    [engine] = read_manifest(str(out / "train"))["engines"]
    [reason] = engine["left_to_hf"]["reasons"]
    assert "end_of_word_suffix" in reason and is_safe(reason)
    page = (out / "report.html").read_text()
    assert "</script><b>" not in page and "\x1b" not in page
