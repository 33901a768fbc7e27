"""A tokenizer's folder: tokenizer.json determines the ids, and damage is reported in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.support.errors import UsageError


@pytest.mark.parametrize(
    ("tokenizer", "config", "message"),
    [
        ('{"version": "1.0"}', "{}", "tokenizer.json: cannot be loaded"),
        ("{", "{}", "tokenizer.json: not JSON"),
        ("{}", "[]", "tokenizer_config.json: not a JSON object"),
        ("[" * 100_000, "{}", "tokenizer.json: not JSON"),
    ],
)
def test_a_damaged_tokenizer_is_no_traceback(
    tokenizer: str, config: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(config)
    with pytest.raises(UsageError, match=message):
        load_tokenizer(str(tmp_path))


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\n")
    with pytest.raises(UsageError, match=r"contains no tokenizer.json; `tokenmill prepare` writes one"):
        load_tokenizer(str(tmp_path))


def test_classes_code_and_limits_of_a_folder_are_not_used(tokenizer_folder: Path, tmp_path: Path) -> None:
    core = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    core["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(core))
    config = {"auto_map": {"AutoTokenizer": ["code.T", None]}, "tokenizer_class": "LlamaTokenizer",
              "add_bos_token": False, "add_eos_token": False}  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    roles = {"pad_token": "<pad>", "mask_token": {"content": "<mask>", "lstrip": True}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer("w0 w1 w2")["input_ids"] == [0, 5, 6, 7, 2]
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.bos_token_id) == (1, 4, None)
