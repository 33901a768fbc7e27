"""Models whose texts cannot be cut to words, or whose ids do not fit, are left to `tokenizers`."""

from __future__ import annotations

import json

import pytest

from beam_pipeline.engines.engine import check_engine, make_engine
from beam_pipeline.tokenization.tokenizer_json import BYTE_TOKENS

MARKS = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
VOCAB = {token: number for number, token in enumerate(["<unk>", "▁", "a", "b", "a▁", *BYTE_TOKENS])}
BPE = {
    "type": "BPE",
    "byte_fallback": True,
    "unk_token": "<unk>",
    "vocab": VOCAB,
    "merges": [["a", "▁"]],
}
AFTER_BYTE = {"vocab": VOCAB | {"<0x0A>▁": len(VOCAB)}, "merges": [["<0x0A>", "▁"]]}
FEW_BYTES = {"vocab": {token: number for token, number in VOCAB.items() if token != "<0xE9>"}}
PIECES = [[piece, -1.0] for piece in ["▁u", "▁", "a", *BYTE_TOKENS]]
UNIGRAM = {"type": "Unigram", "byte_fallback": True, "unk_id": 0, "vocab": PIECES}
WORDPIECE = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": {"[UNK]": 0, "a": 2**31},
}


@pytest.mark.parametrize(
    ("model", "pre_tokenizer", "reason"),
    [
        (BPE | AFTER_BYTE, MARKS, "merges of tokens that stand for bytes"),
        (BPE | FEW_BYTES | {"unk_token": None}, MARKS, "drops characters"),
        (BPE | {"unk_token": "<none>"}, MARKS, "without an unknown token"),
        (UNIGRAM, MARKS | {"split": True}, "whose unknown token is ▁u"),
        (WORDPIECE, {"type": "BertPreTokenizer"}, "an id above 2147483646"),
    ],
)
def test_models_that_the_compiled_code_would_encode_otherwise(
    model: dict, pre_tokenizer: dict, reason: str
) -> None:
    parts = {"version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None}
    tokenizer_json = json.dumps(
        {**parts, "decoder": None, "pre_tokenizer": pre_tokenizer, "model": model}
        | {"truncation": None, "padding": None}
    )
    engine = make_engine("auto", tokenizer_json)
    assert engine.name == "hf" and reason in engine.reason
    options = {"parse_special_tokens": False, "control_ids": ()}
    assert check_engine("auto", tokenizer_json, **options) == engine.reason
