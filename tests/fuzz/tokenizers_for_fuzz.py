"""Small tokenizers of each kind, the same in every run, and the ids of documents by HF's tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_WORDS = ["the", "mill", "turns", "raw", "text", "into", "tokens", "and", "rows", "of", "one", "length"]


def _unigram(for_text: bool = False) -> tuple[Tokenizer, dict[str, str]]:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "▁", *("▁" + word for word in _WORDS)]
    pieces += sorted(set("".join(_WORDS)) | set("日本語Ελλάδαß[]<>|"))
    scores = [
        0.0 if piece.startswith("<") and len(piece) > 2 else -float(i) for i, piece in enumerate(pieces)
    ]
    if for_text:  # the model also finds its control pieces in texts, so give them names that no text contains
        pieces[:5] = [
            piece if piece == "<unk>" else chr(0x10FF00 + id) for id, piece in enumerate(pieces[:5])
        ]
    tokenizer = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=3))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if not for_text:
        tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>"}
    return tokenizer, {**names, "unk": "<unk>", "mask": "<mask>"}


def _wordpiece(for_text: bool = False) -> tuple[Tokenizer, dict[str, str]]:
    letters = sorted(set("".join(_WORDS)) | set("日本語ελλάδα[]<>|#"))
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *letters]
    vocabulary += ["##" + each for each in letters]
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(vocabulary[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    return tokenizer, {**names, "eos": "[SEP]", "mask": "[MASK]"}


def _byte_level(for_text: bool = False) -> tuple[Tokenizer, dict[str, str]]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "m"), ("i", "l"), ("Ġm", "il"), ("Ġmil", "l")]
    merges.append(("e", "n"))
    vocabulary = ["<pad>", *alphabet, *(first_piece + second_piece for first_piece, second_piece in merges)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(vocabulary)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<pad>"])
    return tokenizer, {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>", "pad": "<pad>"}


# With `for_text`, the tokenizer reads the text of a control token as plain text.
TOKENIZERS: dict[str, Callable[..., tuple[Tokenizer, dict[str, str]]]] = {
    "unigram": _unigram,
    "wordpiece": _wordpiece,
    "byte_level": _byte_level,
}


def write_tokenizer(kind: str, folder: Path) -> None:
    """Writes the tokenizer in the format of AutoTokenizer."""
    tokenizer, names = TOKENIZERS[kind]()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": token for name, token in names.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def expected_ids(kind: str, documents: list[str], append_eos: bool) -> list[list[int]]:
    """Returns the ids of each document by HF's encoder, which reads the text of control tokens as plain text."""
    tokenizer, names = TOKENIZERS[kind](for_text=True)
    tokenizer.encode_special_tokens = True
    eos = TOKENIZERS[kind]()[0].token_to_id(names["eos"])
    ids_of_documents = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
    if append_eos:
        ids_of_documents = [ids if ids[-1:] == [eos] else [*ids, eos] for ids in ids_of_documents]
    return ids_of_documents
