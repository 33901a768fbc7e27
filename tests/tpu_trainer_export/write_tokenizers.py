"""Writes tokenizers in the form in which `prepare` copies them to a dataset. Runs in the pipeline's environment.

    python write_tokenizers.py SOURCE TARGET

If there is no folder SOURCE, it is made: SOURCE/<name>/ has a tokenizer of that class whose tokenizer.json has another
normalizer, pre-tokenizer and template than the class's defaults, or one of SentencePiece. TARGET/<name>/ is the copy,
and TARGET/ids.json has the ids that the pipeline's AutoTokenizer gives to the arguments' texts: of the sources, if
SOURCE was made here, and of the copies otherwise.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from beam_pipeline.tokenization.description import describe_tokenizer
from beam_pipeline.tokenization.load_check import check_copy

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


def write_sources(source: Path) -> None:
    for kind, names in KINDS.items():
        for name in names:
            tokenizer_options = {"add_prefix_space": True} if kind == "bpe" else {}
            tokenizer = getattr(transformers, name)(tokenizer_object=trained(kind), **tokenizer_options)
            tokenizer.save_pretrained(source / name)
    # Transformers 5 prefers the model's class to the tokenizer's for some types of models.
    for kind, model_type in (("bpe", "qwen2"), ("unigram", "phi3"), ("unigram", "mistral")):
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained(kind), add_prefix_space=kind == "bpe", eos_token="</s>"
        )
        tokenizer.save_pretrained(source / f"plain-{model_type}")
        (source / f"plain-{model_type}" / "config.json").write_text(json.dumps({"model_type": model_type}))
    for legacy in (True, False):
        write_llama(source / f"llama-{legacy}", legacy)


def write_llama(folder: Path, legacy: bool) -> None:
    """Writes a folder whose model of SentencePiece AutoTokenizer converts although there is a tokenizer.json."""
    folder.mkdir()
    with (folder / "tokenizer.model").open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([f"the people of number {number} said hello" for number in range(100)]),
            model_writer=model,
            model_type="bpe",
            vocab_size=345,
            byte_fallback=True,
            control_symbols="<|endoftext|>",
            hard_vocab_limit=False,
            minloglevel=2,
        )
    tokenizer = transformers.LlamaTokenizerFast.from_pretrained(folder, legacy=legacy)
    tokenizer.add_tokens([AddedToken("<new>", normalized=True)])
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "add_prefix_space": True}
    for token in config["added_tokens_decoder"].values():
        token["normalized"] |= token["content"] == "<|endoftext|>"
    path.write_text(json.dumps(config))


def main(source: Path, target: Path, texts: list[str]) -> None:
    is_new = not source.exists()
    if is_new:
        source.mkdir()
        write_sources(source)
    ids = {}
    for folder in sorted(source.iterdir()):
        copy = target / folder.name
        copy.mkdir(parents=True)
        description = describe_tokenizer(str(folder))
        check_copy(description, str(folder))
        for file, data in description.files.items():
            (copy / file).write_bytes(data)
        auto_tokenizer = transformers.AutoTokenizer.from_pretrained(folder if is_new else copy)
        ids[folder.name] = auto_tokenizer(texts)["input_ids"]
    (target / "ids.json").write_text(json.dumps(ids))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
