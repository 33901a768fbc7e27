"""Folders of tokenizers as authors of models publish them, each written from constants: the same bytes everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers.pre_tokenizers import ByteLevel

Files = Mapping[str, Any]

TEXTS = [
    "the cat sat",
    "The Cat in THE  hat, 1984 12,345",
    " leading  double   spaces\tand tabs \n\n lines ",
    "naïve Übung ﬁ “quotes” ``ticks''",
    "漢字 한국어 नमस्ते",
    "x<mask>y <mask> z",
    "a <s> b</s>c [SEP] d [MASK]e",
    "x<|endoftext|>y <new> z <pin>w",
    "",
]

_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_WORDS = ("the", "cat", "sat", "hat", "in", "and", "lead", "ing", "lines", "12", "19", "84")


def _merges() -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens of a byte-level model, and the merges that spell each word, with and without a space."""
    tokens, merges = sorted(ByteLevel.alphabet()), []
    for word in (*_WORDS, *("Ġ" + word for word in _WORDS)):
        for end in range(2, len(word) + 1):
            merge = (word[: end - 1], word[end - 1])
            if merge not in merges:
                merges.append(merge)
                tokens.append("".join(merge))
    return tokens, merges


def _token(number: int, content: str, **flags: bool) -> dict:
    return {"id": number, "content": content, **_FLAGS, "special": True, **flags}


def _byte_level_json(**parts: Any) -> dict:
    tokens, merges = _merges()
    tokens = [*tokens, "<|endoftext|>", "<s>", "</s>"]
    vocab = {token: number for number, token in enumerate(tokens)}
    added = [_token(vocab[token], token) for token in tokens[-3:]]
    return {
        **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None},
        **{"pre_tokenizer": _BYTE_LEVEL, "post_processor": {**_BYTE_LEVEL, "trim_offsets": False}},
        "decoder": _BYTE_LEVEL,
        "model": {"type": "BPE", "unk_token": None, "vocab": vocab, "merges": merges},
        **parts,
    }


def _template(first: str, number: int) -> dict:
    single = [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    tokens = {first: {"id": first, "ids": [number], "tokens": [first]}}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _with_bos() -> dict:
    parts = _byte_level_json()
    return {**parts, "post_processor": _template("<s>", parts["model"]["vocab"]["<s>"])}


def _wordpiece_vocab() -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + letter for letter in letters)),
        *("The", "Cat", "THE", ",", "``", "漢", "字", "ï", "##ï", "Ü", *_WORDS),
    ]


def _bert_json() -> dict:
    vocab = {token: number for number, token in enumerate(_wordpiece_vocab())}
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
    return {
        **{"version": "1.0", "truncation": None, "padding": None},
        "added_tokens": [
            _token(vocab[token], token) for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
        ],
        "normalizer": {**normalizer, "strip_accents": None, "lowercase": False},
        **{"pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            **{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
            **{"max_input_chars_per_word": 100, "vocab": vocab},
        },
    }


def _pieces() -> list[tuple[str, float]]:
    words = [(f"▁{word}", -3.0 - number / 7) for number, word in enumerate(_WORDS)]
    parts = [(word, -4.0 - number / 11) for number, word in enumerate((*_WORDS, "at", "▁T", "he", "5,"))]
    known = {piece for piece, _ in (*words, *parts)}
    chars = sorted(set("▁abcdefghijklmnopqrstuvwxyzTCHE0123456789,.`'\"“”ïÜ漢字"))
    return [
        *words,
        *parts,
        *((char, -9.0 - place / 13) for place, char in enumerate(chars) if char not in known),
    ]


def _unigram_json(**parts: Any) -> dict:
    vocab = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], *map(list, _pieces())]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    folded = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    return {
        **{"version": "1.0", "truncation": None, "padding": None},
        "added_tokens": [_token(number, vocab[number][0]) for number in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, folded]},
        **{"pre_tokenizer": metaspace, "post_processor": _template("</s>", 1), "decoder": metaspace},
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": False},
        **parts,
    }


def sentencepiece_model(kind: str, first: Mapping[str, int], *, user_defined: tuple[str, ...] = ()) -> bytes:
    """Returns a model of SentencePiece.

    Args:
        kind: `unigram` or `bpe`.
        first: The first pieces, and the type of each: 2 is the unknown piece, 3 a control token.
        user_defined: Pieces that are found in text before all others.
    """
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = {"unigram": 1, "bpe": 2}[kind]
    model.trainer_spec.unk_id = list(first.values()).index(2)
    model.trainer_spec.unk_piece = list(first)[model.trainer_spec.unk_id]
    model.trainer_spec.byte_fallback = kind == "bpe"
    types = {**first, **dict.fromkeys(user_defined, 4)}
    if kind == "bpe":
        types.update(dict.fromkeys((f"<0x{byte:02X}>" for byte in range(256)), 6))
    pieces = [*((piece, 0.0) for piece in types), *_pieces()]
    if kind == "bpe":
        pieces = [(piece, score if len(piece) > 1 else -99.0) for piece, score in pieces]
    for piece, score in pieces:
        model.pieces.add(piece=piece, score=score, type=types.get(piece, 1))
    return model.SerializeToString(deterministic=True)


_LLAMA = {"<unk>": 2, "<s>": 3, "</s>": 3}
_T5 = {"<pad>": 3, "</s>": 3, "<unk>": 2}
_DEBERTA = {"[PAD]": 3, "[CLS]": 3, "[SEP]": 3, "[UNK]": 2}
_ALBERT = {"<pad>": 3, "<unk>": 2, "[CLS]": 3, "[SEP]": 3, "[MASK]": 3}


def _named(name: str, **entries: Any) -> dict:
    return {"tokenizer_config.json": {"tokenizer_class": name, **entries}}


_NEW = {"<new>": {"lstrip": True}, "<pin>": {"rstrip": True, "special": False}}


def _with_new_tokens() -> dict:
    parts = _byte_level_json()
    size = len(parts["model"]["vocab"])
    new = [_token(size + number, token, **flags) for number, (token, flags) in enumerate(_NEW.items())]
    return {**parts, "added_tokens": [*parts["added_tokens"], *new]}


def _added(number: int, content: str, **flags: bool) -> dict:
    return {"added_tokens_decoder": {str(number): {"content": content, **_FLAGS, "special": True, **flags}}}


_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]}
_PREFIX = {**_BYTE_LEVEL, "add_prefix_space": True}
_CODE = {"AutoTokenizer": ["code.MyTokenizer", "code.MyTokenizerFast"]}
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<|endoftext|>"}
_SIZE = len(_byte_level_json()["model"]["vocab"])

# Folders whose ids are those of their tokenizer.json as it is.
AS_IT_IS: Mapping[str, Callable[[], Files]] = {
    "bare": lambda: {"tokenizer.json": _with_bos()},
    "llama with bos": lambda: {
        **_named("LlamaTokenizerFast", add_bos_token=True, add_eos_token=False, legacy=True, **_ROLES),
        **{"tokenizer.json": _with_bos(), "config.json": {"model_type": "llama"}},
    },
    "llama of digits": lambda: {
        **_named("LlamaTokenizer", **_ROLES),
        "tokenizer.json": _byte_level_json(pre_tokenizer=_DIGITS),
    },
    "llama of sentencepiece": lambda: {
        **_named("LlamaTokenizer", add_bos_token=False, add_prefix_space=True, legacy=False),
        "tokenizer.json": _unigram_json(post_processor=None),
        "tokenizer.model": sentencepiece_model("bpe", _LLAMA),
    },
    "gpt2 with prefix space": lambda: {
        **_named("GPT2Tokenizer"),
        "tokenizer.json": _byte_level_json(pre_tokenizer=_PREFIX),
    },
    "plain with prefix space": lambda: {
        **_named("PreTrainedTokenizerFast", **_ROLES),
        "tokenizer.json": _byte_level_json(pre_tokenizer=_PREFIX),
    },
    "plain with bos options": lambda: {
        **_named("PreTrainedTokenizerFast", add_bos_token=False, add_eos_token=True, **_ROLES),
        "tokenizer.json": _with_bos(),
    },
    "tokens that strip": lambda: {**_named("Qwen2Tokenizer"), "tokenizer.json": _with_new_tokens()},
    "other flags in the config": lambda: {
        **_named("PreTrainedTokenizerFast", **_added(_SIZE, "<new>", normalized=True)),
        "tokenizer.json": _with_new_tokens(),
    },
    "t5 with other normalizers": lambda: {**_named("T5Tokenizer"), "tokenizer.json": _unigram_json()},
    "albert without a template": lambda: {
        **_named("AlbertTokenizer", unk_token="<unk>"),
        "tokenizer.json": _unigram_json(post_processor=None),
    },
    "cased bert": lambda: {**_named("BertTokenizer"), "tokenizer.json": _bert_json()},
    "unknown class": lambda: {**_named("NoSuchTokenizer", **_ROLES), "tokenizer.json": _with_bos()},
    "slow class": lambda: {**_named("BertJapaneseTokenizer"), "tokenizer.json": _bert_json()},
    "code": lambda: {
        **_named("MyTokenizer", auto_map=_CODE, **_ROLES),
        **{"tokenizer.json": _with_bos(), "code.py": "raise SystemExit('the code was run')\n"},
    },
    "code beside a known class": lambda: {
        **_named("LlamaTokenizerFast", auto_map=_CODE, **_ROLES),
        **{"tokenizer.json": _with_bos(), "code.py": "raise SystemExit('the code was run')\n"},
    },
    "saved by transformers 5": lambda: {
        **_named(
            "LlamaTokenizer", backend="tokenizers", extra_special_tokens=["<|endoftext|>"], bos_token="<s>"
        ),
        "tokenizer.json": _byte_level_json(pre_tokenizer=_DIGITS),
    },
    "padding and truncation": lambda: {
        **_named("GPT2Tokenizer"),
        "tokenizer.json": _byte_level_json(
            truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
            padding={
                **{"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None},
                **{"pad_id": _SIZE - 1, "pad_type_id": 0, "pad_token": "</s>"},
            },
        ),
    },
}

# Folders whose tokenizer_config.json changes their tokenizer.json, in the same way in both versions of transformers.
CHANGED: Mapping[str, Callable[[], Files]] = {
    "bos in the config": lambda: {
        **_named("LlamaTokenizerFast", add_bos_token=True, add_eos_token=False, legacy=True, **_ROLES),
        "tokenizer.json": _byte_level_json(),
    },
    "no bos in the config": lambda: {
        **_named("LlamaTokenizerFast", add_bos_token=False, **_ROLES),
        "tokenizer.json": _with_bos(),
    },
    "eos in the config": lambda: {
        **_named("GemmaTokenizer", add_bos_token=True, add_eos_token=True, **_ROLES),
        "tokenizer.json": _with_bos(),
    },
    "lower case in the config": lambda: {
        **_named("BertTokenizer", do_lower_case=True, strip_accents=False, tokenize_chinese_chars=False),
        "tokenizer.json": _bert_json(),
    },
    "prefix space in the config": lambda: {
        **_named("GPT2Tokenizer", add_prefix_space=True),
        "tokenizer.json": _byte_level_json(),
    },
    "roles that are missing": lambda: {
        **_named("PreTrainedTokenizerFast", **_ROLES, pad_token="<new>", additional_special_tokens=["<pin>"]),
        "tokenizer.json": _byte_level_json(),
    },
    "tokens that are missing": lambda: {
        **_named("GPT2Tokenizer", **_added(_SIZE, "<new>", lstrip=True, rstrip=True)),
        "tokenizer.json": _byte_level_json(),
    },
    "tokens in files of their own": lambda: {
        **_named("GPT2Tokenizer"),
        **{"tokenizer.json": _byte_level_json(), "added_tokens.json": {"<new>": _SIZE}},
        "special_tokens_map.json": {"eos_token": "</s>", "mask_token": {"content": "<mask>", "lstrip": True}},
    },
}


def _gpt2_files() -> Files:
    tokens, merges = _merges()
    tokens = [*tokens, "<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>"]
    lines = ["#version: 0.2", *map(" ".join, merges)]
    return {
        "vocab.json": {token: number for number, token in enumerate(tokens)},
        "merges.txt": "\n".join(lines) + "\n",
    }


_VOCAB = {"vocab.txt": "\n".join(_wordpiece_vocab()) + "\n"}
_OPT = {
    "bos_token": "</s>",
    "eos_token": "</s>",
    "unk_token": "</s>",
    "pad_token": "<pad>",
    "add_bos_token": True,
}

# Folders without a tokenizer.json.
CONVERTED: Mapping[str, Callable[[], Files]] = {
    "gpt2": lambda: {**_named("GPT2Tokenizer"), **_gpt2_files()},
    "gpt2 by its model": lambda: {"config.json": {"model_type": "gpt2"}, **_gpt2_files()},
    "opt": lambda: {**_named("GPT2Tokenizer", **_OPT), **_gpt2_files()},
    "roberta": lambda: {**_named("RobertaTokenizer", add_prefix_space=True), **_gpt2_files()},
    "bart": lambda: {**_named("BartTokenizer"), **_gpt2_files()},
    "bert": lambda: {**_named("BertTokenizer"), **_VOCAB},
    "cased bert": lambda: {
        **_named("BertTokenizer", do_lower_case=False, tokenize_chinese_chars=False),
        **_VOCAB,
    },
    "electra by its model": lambda: {"config.json": {"model_type": "electra"}, **_VOCAB},
    "bert with new tokens": lambda: {
        **_named("DistilBertTokenizer"),
        **{**_VOCAB, "added_tokens.json": {"<new>": len(_wordpiece_vocab())}},
    },
    "t5": lambda: {**_named("T5Tokenizer"), "spiece.model": sentencepiece_model("unigram", _T5)},
    "mt5": lambda: {
        **_named("T5Tokenizer", extra_ids=0, legacy=False, additional_special_tokens=None),
        "spiece.model": sentencepiece_model("unigram", _T5),
    },
    "xlm-roberta": lambda: {
        **_named("XLMRobertaTokenizer"),
        "sentencepiece.bpe.model": sentencepiece_model("unigram", _LLAMA, user_defined=("<pin>",)),
    },
    "albert": lambda: {**_named("AlbertTokenizer"), "spiece.model": sentencepiece_model("unigram", _ALBERT)},
    "albert with accents": lambda: {
        **_named("AlbertTokenizer", keep_accents=True, do_lower_case=False),
        "spiece.model": sentencepiece_model("unigram", _ALBERT),
    },
    "deberta": lambda: {
        **_named("DebertaV2Tokenizer", do_lower_case=False),
        "spm.model": sentencepiece_model("unigram", _DEBERTA),
    },
    "deberta of words": lambda: {
        **_named("DebertaV2Tokenizer", do_lower_case=True, split_by_punct=True),
        "spm.model": sentencepiece_model("unigram", _DEBERTA),
    },
    "llama": lambda: {**_named("LlamaTokenizer"), "tokenizer.model": sentencepiece_model("bpe", _LLAMA)},
    "llama without legacy": lambda: {
        **_named("LlamaTokenizer", legacy=False, add_bos_token=False, add_eos_token=True),
        "tokenizer.model": sentencepiece_model("bpe", _LLAMA, user_defined=("<pin>",)),
    },
    "llama without prefix space": lambda: {
        **_named("LlamaTokenizer", add_prefix_space=False),
        "tokenizer.model": sentencepiece_model("bpe", _LLAMA),
    },
}

FOLDERS = {**AS_IT_IS, **CHANGED, **{f"converted {name}": files for name, files in CONVERTED.items()}}


def write(files: Files, folder: Path) -> Path:
    """Writes files, of bytes, text or JSON, to a new folder."""
    folder.mkdir()
    for name, value in files.items():
        data = value if isinstance(value, bytes | str) else json.dumps(value, ensure_ascii=False)
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder
