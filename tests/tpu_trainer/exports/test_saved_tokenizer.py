"""The tokenizer beside an exported model: tokenizer.json unchanged, with a class that leaves it so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AlbertTokenizerFast, AutoTokenizer, PreTrainedTokenizerFast

from tpu_trainer.data.tokenizer import load_tokenizer
from tpu_trainer.exports.saved_tokenizer import save_tokenizer


def test_a_class_with_a_normalizer_of_its_own_is_saved_as_the_class_that_has_none(tmp_path: Path) -> None:
    # Like the Keras example's tokenizer: Albert's class, but case is preserved.
    pieces = ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]", "\u2581", "\u2581The", "\u2581the"]
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    core.normalizer = normalizers.Replace("``", '"')
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = AlbertTokenizerFast()
    tokenizer.save_pretrained(tmp_path)
    core.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "saved").mkdir()
    save_tokenizer(str(tmp_path), tmp_path / "saved", max_length=9, token_types=True)
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(saved) is PreTrainedTokenizerFast
    assert saved("The the")["input_ids"] == core.encode("The the").ids == [6, 7]
    assert saved.model_max_length == 9
    for name in ("cls", "sep", "pad", "mask", "unk"):
        assert getattr(saved, f"{name}_token") == getattr(tokenizer, f"{name}_token")


@pytest.mark.parametrize("token_types", [True, False])
def test_token_types_are_returned_only_for_models_that_have_embeddings_of_them(
    token_types: bool, tmp_path: Path
) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", model_input_names=names
    ).save_pretrained(tmp_path)
    save_tokenizer(str(tmp_path), tmp_path, max_length=9, token_types=token_types)
    assert ("token_type_ids" in AutoTokenizer.from_pretrained(tmp_path)("a")) == token_types


def test_further_special_tokens_are_written_so_that_transformers_4_reads_them(tmp_path: Path) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "<x>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", extra_special_tokens=["<x>", "<y>"]
    )
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).all_special_ids == tokenizer.all_special_ids
    save_tokenizer(str(tmp_path), tmp_path, max_length=9, token_types=False)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["additional_special_tokens"] == ["<x>", "<y>"]
    assert "extra_special_tokens" not in config
    for saved in (load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)):
        assert sorted(saved.all_special_ids) == sorted(tokenizer.all_special_ids) == [0, 2, 3]
        assert saved("a<y>a")["input_ids"] == [1, 3, 1]


def test_a_prompt_does_not_end_with_the_end_token(tokenizer_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_folder))
    assert tokenizer("w0 w1")["input_ids"] == [0, 5, 6, 2]
    source = str(tokenizer_folder)
    for _ in range(2):
        save_tokenizer(source, tmp_path, max_length=9, token_types=False, appends=False)
        source = str(tmp_path)
        saved = AutoTokenizer.from_pretrained(source)
        assert saved("w0 w1")["input_ids"] == [0, 5, 6]
        assert saved("")["input_ids"] == [0]
