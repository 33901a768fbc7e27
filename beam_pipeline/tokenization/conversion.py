"""Conversion of folders without a `tokenizer.json`, by fixed rules: those of transformers 4.57 for its classes.

Releases of transformers convert the same files to different tokenizers, so it is not used here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from beam_pipeline.support.errors import UsageError
from beam_pipeline.tokenization import sentencepiece_conversion as spm
from beam_pipeline.tokenization.folder_files import dump_json, first_line
from beam_pipeline.tokenization.template import template_processor
from beam_pipeline.tokenization.tokenizer_classes import TokenizerClass
from beam_pipeline.tokenization.tokenizer_config import additional_tokens, content

VOCAB_TXT, VOCAB_JSON, MERGES = "vocab.txt", "vocab.json", "merges.txt"

# A `tokenizer.json` without a model, in the order in which `tokenizers` writes it.
_EMPTY = {
    **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": []},
    **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
}

# T5 has 100 tokens that a config can request.
_MAX_EXTRA_IDS = 10_000


def convert(
    files: Mapping[str, bytes], config: Mapping[str, Any], tokenizer_class: TokenizerClass, path: str
) -> tuple[bytes, dict]:
    """Makes the `tokenizer.json` of a folder that has the vocabulary in other files.

    Args:
        files: The content of the folder's files by name.
        config: The folder's `tokenizer_config.json`.
        tokenizer_class: The class that the folder names. Its own tokens are not added yet.
        path: The folder, for messages.

    Returns:
        The content of the file, without post-processor, and the post-processor without ids.

    Raises:
        UsageError: If the class or its files cannot be converted.
    """
    name = tokenizer_class.name
    if name not in _CONVERTERS:
        raise UsageError(
            f"--tokenizer {path}: has no tokenizer.json, and {', '.join(sorted(files))} of the class {name} cannot be "
            f"converted here (only {', '.join(sorted(_CONVERTERS))}); load the folder with the release of "
            "transformers that its model was made with, and use the files that save_pretrained writes"
        )
    source = _Source({**_defaults(tokenizer_class), **config}, files)
    try:
        parts = _CONVERTERS[name](source)
        return dump_json({**_EMPTY, **parts, "post_processor": None}), parts["post_processor"]
    except Exception as error:  # the libraries raise exceptions of many types for damaged files
        raise UsageError(
            f"--tokenizer {path}: its files ({', '.join(sorted(files))}) cannot be converted as those of {name}: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error


@dataclass(frozen=True)
class _Source:
    """The folder to convert."""

    config: Mapping[str, Any]
    """The config, with the special tokens of the class."""
    files: Mapping[str, bytes]

    def option(self, name: str, default: bool) -> bool:
        """Returns an option of the class, or its default if the config does not have it."""
        value = self.config.get(name)
        return default if value is None else bool(value)

    def token(self, role: str) -> str:
        """Returns the special token with this role.

        Raises:
            ValueError: If there is none.
        """
        token = self.config.get(f"{role}_token")
        if not token:
            raise ValueError(f"no {role}_token")
        return content(token)

    def lines(self, name: str) -> list[str]:
        """Returns the lines of a text file of the folder."""
        return [line.rstrip("\n") for line in io.StringIO(self.files[name].decode(), newline=None)]


def _defaults(tokenizer_class: TokenizerClass) -> dict[str, str]:
    return {f"{role}_token": token for role, token in tokenizer_class.roles.items()}


def _wordpiece(source: _Source) -> dict:
    """BERT's `vocab.txt`. Its options are applied later."""
    cls, sep = (source.token(role) for role in ("cls", "sep"))
    return {
        "normalizer": {
            **{"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
            **{"strip_accents": None, "lowercase": True},
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template_processor((cls,), (sep,), ((), (sep,)), 1),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            **{"type": "WordPiece", "unk_token": source.token("unk"), "continuing_subword_prefix": "##"},
            "max_input_chars_per_word": 100,
            "vocab": {token: number for number, token in enumerate(source.lines(VOCAB_TXT))},
        },
    }


def _byte_level(source: _Source) -> dict:
    """GPT-2's `vocab.json` and `merges.txt`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    merges = [
        line.split() for line in source.lines(MERGES) if line.strip() and not line.startswith("#version")
    ]
    post_processor = {**byte_level, "trim_offsets": False}
    if source.option("add_bos_token", False):
        bos = (source.token("bos"),)
        post_processor = template_processor(bos, (), ((), ()), 1)
    return {
        "pre_tokenizer": {**byte_level, "add_prefix_space": False},
        "post_processor": post_processor,
        "decoder": byte_level,
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": ""},
            **{"end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
            "vocab": json.loads(source.files[VOCAB_JSON]),
            "merges": list(dict.fromkeys(map(tuple, merges))),
        },
    }


def _roberta(source: _Source) -> dict:
    """GPT-2's files, with `<s> … </s>` around a text."""
    cls, sep = (source.token(role) for role in ("cls", "sep"))
    post_processor = template_processor((cls,), (sep,), ((sep,), (sep,)), 0)
    return {**_byte_level(source), "post_processor": post_processor}


def _sentencepiece(make: Callable[[spm.Model, _Source], dict]) -> Callable[[_Source], dict]:
    def converter(source: _Source) -> dict:
        [name] = [name for name in source.files if name.endswith(".model")]
        return make(spm.read_model(source.files[name]), source)

    return converter


def _t5(model: spm.Model, source: _Source) -> dict:
    named = [token for token in additional_tokens(source.config) if token.startswith("<extra_id_")]
    extra = len(named) or source.config.get("extra_ids", 100)
    if extra not in range(_MAX_EXTRA_IDS):
        raise ValueError(f"extra_ids is {extra}")
    pieces = [*model.pieces, *((f"<extra_id_{number}>", 0.0) for number in reversed(range(extra)))]
    scheme = "always" if source.option("legacy", True) else "first"
    eos = (source.token("eos"),)
    return {
        **spm.unigram_or_bpe(model, pieces, model.unk_id),
        "normalizer": spm.normalizer(model),
        **spm.metaspace(scheme if source.option("add_prefix_space", True) else "never"),
        "post_processor": template_processor((), eos, ((), eos), 0),
    }


def _xlm_roberta(model: spm.Model, source: _Source) -> dict:
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    return {
        **spm.unigram_or_bpe(model, [*first, *model.pieces[3:], ("<mask>", 0.0)], 3),
        "normalizer": spm.normalizer(model),
        **spm.metaspace("always"),
        "post_processor": template_processor(("<s>",), ("</s>",), (("</s>",), ("</s>",)), 0),
    }


def _albert(model: spm.Model, source: _Source) -> dict:
    # A number with a comma at its end is never one piece.
    pieces = [
        (piece, score - 100 if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score)
        for piece, score in model.pieces
    ]
    before = [spm.replace("``", '"'), spm.replace("''", '"')]
    if not source.option("keep_accents", False):
        before += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if source.option("do_lower_case", True):
        before.append({"type": "Lowercase"})
    return {
        **spm.unigram_or_bpe(model, pieces, model.unk_id),
        "normalizer": spm.sequence([*before, *spm.charsmap(model), spm.replace_spaces(" ")]),
        **spm.metaspace("always"),
        "post_processor": template_processor(("[CLS]",), ("[SEP]",), ((), ("[SEP]",)), 1),
    }


def _deberta_v2(model: spm.Model, source: _Source) -> dict:
    before = [{"type": "Lowercase"}] if source.option("do_lower_case", False) else []
    before.append({"type": "Strip", "strip_left": True, "strip_right": True})
    split = (
        [{"type": "Punctuation", "behavior": "Isolated"}] if source.option("split_by_punct", False) else []
    )
    metaspace = spm.metaspace("always")
    return {
        **spm.unigram_or_bpe(model, model.pieces, model.unk_id),
        "normalizer": spm.sequence([*before, *spm.charsmap(model), spm.replace_spaces(" ")]),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, metaspace["pre_tokenizer"]]},
        "decoder": metaspace["decoder"],
        "post_processor": template_processor(("[CLS]",), ("[SEP]",), ((), ("[SEP]",)), 1),
    }


def _llama(model: spm.Model, source: _Source) -> dict:
    pieces = [*((piece, 0.0) for piece, _ in model.pieces[:3]), *model.pieces[3:]]
    prefix_space = source.option("add_prefix_space", True)
    decoders = [spm.replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    if source.option("legacy", True):
        prepend = [{"type": "Prepend", "prepend": "▁"}] if prefix_space else []
        before = {"normalizer": spm.sequence([*prepend, spm.replace(" ", "▁")]), "pre_tokenizer": None}
    else:
        metaspace = spm.metaspace("first" if prefix_space else "never")["pre_tokenizer"]
        before = {"normalizer": None, "pre_tokenizer": {**metaspace, "split": False}}
    bos = (source.token("bos"),) if source.option("add_bos_token", True) else ()
    eos = (source.token("eos"),) if source.option("add_eos_token", False) else ()
    return {
        **spm.unigram_or_bpe(model, pieces, 0, byte_fallback=True),
        **before,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "post_processor": template_processor(bos, eos, (bos, eos), 1),
    }


_CONVERTERS: Mapping[str, Callable[[_Source], dict]] = {
    **dict.fromkeys(("Bert", "ConvBert", "DistilBert", "Electra", "MobileBert"), _wordpiece),
    "GPT2": _byte_level,
    **dict.fromkeys(("Bart", "Longformer", "Roberta"), _roberta),
    **dict.fromkeys(("MT5", "T5"), _sentencepiece(_t5)),
    "XLMRoberta": _sentencepiece(_xlm_roberta),
    "Albert": _sentencepiece(_albert),
    "DebertaV2": _sentencepiece(_deberta_v2),
    "Llama": _sentencepiece(_llama),
}
