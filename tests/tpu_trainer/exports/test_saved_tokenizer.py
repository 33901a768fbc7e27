"""The tokenizer beside an exported model gives the same ids in transformers 4 and 5."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (
    AlbertTokenizerFast,
    AutoTokenizer,
    BertConfig,
    GPT2Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    XLMConfig,
)

from tpu_trainer.exports.checkpoint_export import save_tokenizer


def test_a_class_with_a_normalizer_of_its_own_is_saved_as_the_class_that_has_none(tmp_path: Path) -> None:
    # Like the Keras example's tokenizer: Albert's class, but case is preserved.
    pieces = ["[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]", "\u2581", "\u2581The", "\u2581the"]
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    core.normalizer = normalizers.Replace("``", '"')
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = AlbertTokenizerFast(tokenizer_object=core)
    save_tokenizer(tokenizer, tmp_path, BertConfig())
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert type(saved) is PreTrainedTokenizerFast
    assert saved("The the")["input_ids"] == tokenizer("The the")["input_ids"] == [6, 7]
    assert saved.model_input_names == tokenizer.model_input_names
    assert saved.special_tokens_map == tokenizer.special_tokens_map


@pytest.mark.parametrize(
    ("config", "has_token_types"),
    [
        (BertConfig(), True),
        (BertConfig(type_vocab_size=0), False),
        (GPT2Config(), False),
        (XLMConfig(), False),
    ],
)
def test_token_types_are_returned_only_for_models_that_have_embeddings_of_them(
    config: PretrainedConfig, has_token_types: bool, tmp_path: Path
) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    save_tokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"), tmp_path, config)
    assert ("token_type_ids" in AutoTokenizer.from_pretrained(tmp_path)("a")) == has_token_types
