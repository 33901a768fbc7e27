"""Writes tokenizers in the form in which `prepare` copies them to a dataset. Runs in the pipeline's environment.

    python write_tokenizers.py TARGET

TARGET/<class>/ has a tokenizer of that class whose tokenizer.json has another normalizer, pre-tokenizer and template
than the class's defaults.
"""

from __future__ import annotations

import sys
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from beam_pipeline.tokenization.description import describe_tokenizer

SPECIAL = [
    "[CLS]",
    "[SEP]",
    "<unk>",
    "<pad>",
    "[MASK]",
    "<s>",
    "</s>",
    "[UNK]",
    "[PAD]",
    "<mask>",
    "<|endoftext|>",
]
TEXT = ["The cat in THE Hat", "a ``naive'' reader of Books, in 1984", "naïve Übung ﬁ"] * 3
KINDS = {
    "unigram": (
        *(
            "AlbertTokenizerFast",
            "XLMRobertaTokenizerFast",
            "CamembertTokenizerFast",
            "DebertaV2TokenizerFast",
        ),
        *("RemBertTokenizerFast", "LlamaTokenizerFast"),
    ),
    "wordpiece": ("BertTokenizerFast", "DistilBertTokenizerFast", "ElectraTokenizerFast"),
    "bpe": ("GPT2TokenizerFast", "RobertaTokenizerFast", "DebertaTokenizerFast"),
}


def trained(kind: str) -> Tokenizer:
    """Returns a tokenizer that preserves case."""
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=100, special_tokens=SPECIAL, unk_token="<unk>")
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=100, special_tokens=SPECIAL)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.normalizer = normalizers.Replace("``", '"')
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return tokenizer


def main(target: Path) -> None:
    for kind, names in KINDS.items():
        for name in names:
            own = {"add_prefix_space": True} if kind == "bpe" else {}
            made = getattr(transformers, name)(tokenizer_object=trained(kind), **own)
            made.save_pretrained(target / "saved" / name)
            (target / name).mkdir()
            for file, data in describe_tokenizer(str(target / "saved" / name)).files.items():
                (target / name / file).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
