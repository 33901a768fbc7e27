"""Tokenizers of kinds that few models have get HF's ids from the native engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from beam_pipeline.engines.engine import make_engine
from beam_pipeline.tokenization.byte_level import byte_characters
from tests.beam_pipeline.tokenizers import corpus

SUFFIX = "</w>"


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(*before: pre_tokenizers.PreTokenizer, regex: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)]
    )


CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
FAMILIES = {
    "CLIP": (
        {"end_of_word_suffix": SUFFIX, "unk_token": "<unk>"},
        normalizers.Sequence(
            [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
        ),
        byte_level(split(CLIP, "removed", True), regex=True),
    ),
    "HerBERT": (
        {"end_of_word_suffix": SUFFIX, "unk_token": "<unk>"},
        normalizers.BertNormalizer(lowercase=False),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "BARThez": ({"unk_token": "<unk>", "fuse_unk": True}, normalizers.NFKC(), pre_tokenizers.Metaspace()),
    "envit5": (
        {"unk_token": "<unk>"},
        normalizers.NFKC(),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
    ),
    "words with byte fallback": (
        {"unk_token": "<unk>", "byte_fallback": True},
        None,
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "words that are tokens": (
        {"unk_token": "<unk>", "ignore_merges": True},
        None,
        pre_tokenizers.Metaspace(prepend_scheme="never"),
    ),
    "BLOOM": ({}, None, byte_level(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"))),
    "DeepSeek-Coder": (
        {},
        None,
        byte_level(
            split("[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split("[一-龥ࠀ-一가-퟿]+"),
            pre_tokenizers.Digits(individual_digits=True),
        ),
    ),
    "StarCoder": ({}, None, byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rarest", [1, 40])
def test_other_families_have_a_fast_engine(
    family: str, rarest: int, hard_texts: list[str], hostile_texts: list[str]
) -> None:
    options, normalizer, pre_tokenizer = FAMILIES[family]
    tokenizer = Tokenizer(models.BPE(**options))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    is_byte_level = "ByteLevel" in str(pre_tokenizer)
    limits = {} if rarest == 1 else {"limit_alphabet": 60}  # a vocabulary that lacks characters or bytes
    suffix = {"end_of_word_suffix": SUFFIX} if "end_of_word_suffix" in options else {}
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        min_frequency=rarest,
        special_tokens=["<unk>"],
        initial_alphabet=sorted(byte_characters().values()) if is_byte_level and rarest == 1 else [],
        show_progress=False,
        **limits,
        **suffix,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    parts = json.loads(tokenizer.to_str())
    parts["model"] |= options
    if options.get("byte_fallback"):
        vocab = parts["model"]["vocab"]
        vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    tokenizer_json = json.dumps(parts)
    texts = [*hard_texts, *hostile_texts, "", "a", "▁", "the</w> end", "<unk>"]
    expected = Tokenizer.from_str(tokenizer_json)
    expected.encode_special_tokens = True
    for threads in (1, 2):
        engine = make_engine("native", tokenizer_json, threads=threads)
        ids, lengths = engine.encode_batch(texts)
        encodings = expected.encode_batch(texts, add_special_tokens=False)
        for text, part, encoding in zip(
            texts, np.split(ids, np.cumsum(lengths)[:-1]), encodings, strict=True
        ):
            assert part.tolist() == encoding.ids, text
