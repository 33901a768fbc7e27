"""Analyses a tokenizer: its parts, and where a text can be cut without changing its tokens.

`split_tokenizer` supports only the components and options listed in this module, which the tests compare with
`tokenizers`. Text for any other tokenizer is encoded by `tokenizers` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_pipeline.tokenization import normalization
from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET, make_unreachable, product

UNIGRAM, WORDPIECE, BYTE_LEVEL, SENTENCEPIECE = "Unigram", "WordPiece", "byte-level BPE", "SentencePiece BPE"

# Where a normalized text can be cut, by the kind of tokenizer.
# Unigram: before every space, which is part of the word after it. (Only here the character before it does not matter.)
_BEFORE_SPACE = re.compile("(?= )")
# WordPiece: also before punctuation, which is a word of its own.
_WORDPIECE = re.compile(r"(?= )|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")
# Byte-level BPE: between a word and a space followed by a word, and between letters and a character that ends every run
# of letters.
_BYTE_LEVEL = re.compile(
    r"(?<=[!-~])(?= [!-~])|(?<=[A-Za-z])(?=[0-9,.;:])|(?<=[\u4e00-\u9fff])(?=[，。、；：！？])"
)
# SentencePiece BPE: before a word's mark.
_SENTENCEPIECE = re.compile("(?<=[^▁])(?=▁[^▁])")

_GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = (_GPT2_PATTERN, _LLAMA3_PATTERN, _QWEN2_PATTERN, _O200K_PATTERN)

# Normalizers that never remove a text's first character. `Metaspace` with the scheme "first" prepends its mark only if
# the first remaining character is the original text's first.
_KEEP_FIRST = (*normalization.UNICODE_FORMS, "Prepend")


class UnsupportedComponent(Exception):
    """The tokenizer has a component that this module does not support. The message names it."""


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, split into the parts that fast engines need."""

    kind: str
    """The kind of its model and pre-tokenizer: one of the constants above."""
    normalize: Sequence[normalization.Step]
    """The steps of its normalizer that come before `core`."""
    core: Mapping
    """The `tokenizer.json` of the rest. It adds no tokens, and has no special tokens."""
    cuts: re.Pattern
    """Where a normalized text can be cut: the ids of the pieces, concatenated, are the ids of the text."""
    literals: tuple[str, ...]
    """The strings that become added tokens, as they occur in text before normalization."""


def split_tokenizer(tokenizer: Mapping, parse_special_tokens: bool) -> TokenizerParts:
    """Splits a parsed `tokenizer.json` into its parts.

    Raises:
        UnsupportedComponent: If a component is not supported.
    """
    core = {**tokenizer, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    added = [token for token in tokenizer["added_tokens"] if parse_special_tokens or not token["special"]]
    normalizer, model = tokenizer["normalizer"], tokenizer["model"]
    if normalizer is not None and any(token["normalized"] for token in added):
        raise UnsupportedComponent("added tokens that are matched in normalized text")
    kind_of = {"Unigram": _unigram, "WordPiece": _wordpiece, "BPE": _bpe}
    if model.get("type") not in kind_of:
        raise UnsupportedComponent(f"a model of the type {model.get('type')}")
    kind, steps, cuts = kind_of[model["type"]](core)
    literals = tuple(sorted({token["content"] for token in added}))
    return TokenizerParts(kind, steps, core, cuts, literals)


def _unigram(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    normalizer = core["normalizer"]
    steps = normalization.steps(normalizer)
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if len(parts) == 2 and parts[0]["type"] == "WhitespaceSplit":
        if parts[1].get("prepend_scheme") != "always":
            raise UnsupportedComponent(
                "WhitespaceSplit before a Metaspace whose prepend_scheme is not 'always'"
            )
        steps.append(normalization.for_each(_mark_words))
        parts = parts[1:]
    if len(parts) != 1 or parts[0]["type"] != "Metaspace":
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)}")
    metaspace = parts[0]
    if metaspace["replacement"] != "▁" or not metaspace.get("split", True):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(metaspace, ensure_ascii=False)}")
    if metaspace["prepend_scheme"] == "first" and not _keeps_first(normalizer):
        raise UnsupportedComponent(
            "a normalizer that may remove the first character, before a Metaspace with prepend_scheme 'first'"
        )
    core.update(normalizer=None, pre_tokenizer=metaspace)
    return UNIGRAM, steps, _BEFORE_SPACE


def _mark_words(text: str) -> str:
    """Puts a space before each word, unless the word begins with the mark that Metaspace would insert there."""
    words = filter(None, re.split(f"[{normalization.RUST_SPACE}]+", text))
    return "".join(word if word.startswith("▁") else " " + word for word in words)


def _keeps_first(normalizer: Mapping | None) -> bool:
    """Whether the normalizer never removes a text's first character."""
    for part in _sequence(normalizer, "normalizers"):
        replaces = part["type"] == "Replace" and part["content"]
        strips_right = part["type"] == "Strip" and not part["strip_left"]
        if not (part["type"] in _KEEP_FIRST or replaces or strips_right):
            return False
    return True


def _wordpiece(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    normalizer, pre_tokenizer = core["normalizer"], core["pre_tokenizer"]
    if not normalizer or normalizer["type"] != "BertNormalizer" or not normalizer["clean_text"]:
        raise UnsupportedComponent(f"the normalizer {json.dumps(normalizer)}")
    if not normalizer["handle_chinese_chars"]:
        raise UnsupportedComponent("a BertNormalizer with handle_chinese_chars off")
    if not pre_tokenizer or pre_tokenizer["type"] != "BertPreTokenizer":
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(pre_tokenizer)}")
    if core["model"]["continuing_subword_prefix"] != "##":
        raise UnsupportedComponent(f"the subword prefix {core['model']['continuing_subword_prefix']!r}")
    return WORDPIECE, [], _WORDPIECE


def _bpe(core: dict) -> tuple[str, list[normalization.Step], re.Pattern]:
    model = core["model"]
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedComponent(f"the BPE option {option} = {model[option]!r}")
    core_normalizer = core["normalizer"]
    steps = normalization.steps(core_normalizer)
    core["normalizer"] = None
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if model.get("byte_fallback"):
        steps += _unsplit_metaspace(parts, core_normalizer)
        core["pre_tokenizer"] = None
        if any("▁" in token.lstrip("▁") for token in model["vocab"]):
            raise UnsupportedComponent("tokens that span two words")
        return SENTENCEPIECE, steps, _SENTENCEPIECE
    core["pre_tokenizer"], prefix = _byte_level(parts)
    core["model"] = _without_unused_tokens(model)
    if prefix:
        steps.append(
            normalization.for_each(lambda text: " " + text if text and not text.startswith(" ") else text)
        )
    return BYTE_LEVEL, steps, _BYTE_LEVEL


def _without_unused_tokens(model: Mapping) -> Mapping:
    """Prevents engines from finding tokens of a byte-level model that `tokenizers` never emits.

    `tokenizers` sees words in the byte alphabet, and reaches longer tokens only by merges, unless it ignores merges.
    """
    vocab = model["vocab"]
    if not vocab.keys() >= BYTE_ALPHABET:
        raise UnsupportedComponent("a byte-level model without tokens for all bytes")
    made = vocab.keys() if model["ignore_merges"] else {product(model, merge) for merge in model["merges"]}
    unused = [key for key in vocab if len(key) > 1 and (key not in made or not BYTE_ALPHABET.issuperset(key))]
    unused += [key for key in vocab if len(key) == 1 and key not in BYTE_ALPHABET]
    return make_unreachable(model, unused)[0]


def _unsplit_metaspace(parts: Sequence[Mapping], normalizer: Mapping | None) -> list[normalization.Step]:
    """Returns a Metaspace pre-tokenizer that does not split as normalization steps, which is all that it does."""
    if not parts:
        return []
    if len(parts) > 1 or parts[0]["type"] != "Metaspace" or parts[0].get("split", True):
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)} before a BPE model with byte fallback")
    scheme = parts[0]["prepend_scheme"]
    if parts[0]["replacement"] != "▁" or (scheme == "first" and not _keeps_first(normalizer)):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts[0], ensure_ascii=False)}")

    def mark(text: str) -> str:
        text = text.replace(" ", "▁")
        return "▁" + text if text and scheme != "never" and not text.startswith("▁") else text

    return [normalization.for_each(mark)]


def _byte_level(parts: Sequence[Mapping]) -> tuple[dict, bool]:
    """Returns the pre-tokenizer without its prefix space, and whether it had one."""
    if not parts or parts[-1]["type"] != "ByteLevel" or len(parts) > 2:
        raise UnsupportedComponent(f"the pre-tokenizer {_names(parts)}")
    byte_level = {**parts[-1], "add_prefix_space": False, "use_regex": True}
    if len(parts) == 1:
        if not parts[0].get("use_regex", True):
            raise UnsupportedComponent("a ByteLevel pre-tokenizer that does not split")
        return byte_level, parts[0]["add_prefix_space"]
    split = parts[0]
    pattern = (split.get("pattern") or {}).get("Regex")
    known = split["type"] == "Split" and split["behavior"] == "Isolated" and not split["invert"]
    if not known or pattern not in PATTERNS or parts[1].get("use_regex", True):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts)}")
    if parts[1]["add_prefix_space"]:
        raise UnsupportedComponent("a prefix space for each word")
    if pattern == _GPT2_PATTERN:
        return byte_level, False
    return {"type": "Sequence", "pretokenizers": list(parts)}, False


def _sequence(part: Mapping | None, key: str) -> list[Mapping]:
    """Flattens nested sequences of components."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for child in part[key] for inner in _sequence(child, key)]
    return [part]


def _names(parts: Sequence[Mapping]) -> str:
    return " + ".join(part["type"] for part in parts) or "None"
