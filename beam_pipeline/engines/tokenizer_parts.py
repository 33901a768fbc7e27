"""Analysis of a tokenizer: its parts, and where a text can be cut without changing its tokens.

`split_tokenizer` supports only the components and options listed in this module and in `byte_level`, which the tests
compare with `tokenizers`. Text for any other tokenizer is encoded by `tokenizers` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from beam_pipeline.engines.literals import Literals
from beam_pipeline.engines.split_levels import make_splitter
from beam_pipeline.native.words import Splitter
from beam_pipeline.tokenization import byte_level, byte_units, normalization
from beam_pipeline.tokenization.tokenizer_json import BYTE_TOKENS, UnsupportedComponent

UNIGRAM, WORDPIECE, BYTE_LEVEL, SENTENCEPIECE = "Unigram", "WordPiece", "byte-level BPE", "SentencePiece BPE"
BYTE_UNIGRAM, WORD_BPE = "byte-level Unigram", "BPE"

# Where a normalized text can be cut, by the kind of tokenizer.
# Unigram: before every space, which is part of the word after it. (Only here the character before it does not matter.)
_BEFORE_SPACE = re.compile("(?= )")
# WordPiece: also before punctuation, which is a word of its own.
_WORDPIECE = re.compile(r"(?= )|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")

# Normalizers that never remove a text's first character. `Metaspace` with the scheme "first" prepends its mark only if
# the first remaining character is the original text's first.
_KEEP_FIRST = (*normalization.UNICODE_FORMS, "Prepend")

_MARKS = (" ", "▁")
_SPACES_TO_MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, split into the parts that both engines need to encode pieces of a text."""

    kind: str
    """The kind of its model and pre-tokenizer: one of the constants above."""
    core: Mapping
    """The `tokenizer.json` of its model and the rest of its components. It adds no tokens."""
    cuts: re.Pattern | None
    """Matches where a normalized text can be cut: the ids of the pieces, concatenated, are the ids of the text. None if
    that is unknown, so that texts of any length are encoded as a whole."""
    normalize: Sequence[normalization.Step] = ()
    """The steps of its normalizer that come before `core`."""
    mark: Sequence[normalization.Step] = ()
    """The steps that come after `normalize`: the parts of its pre-tokenizer that `core` lacks."""
    splitter: Splitter | None = None
    """Splits text to words; None if marks do."""
    literals: Literals = field(default_factory=Literals)
    """The added tokens that are matched in text before normalization."""
    normalized_literals: Literals = field(default_factory=Literals)
    """The added tokens that are matched in normalized text."""
    uniform: bool = True
    """Whether the text after an added token is encoded like a text of its own."""


def split_tokenizer(tokenizer: Mapping, parse_special_tokens: bool) -> TokenizerParts:
    """Splits a parsed `tokenizer.json` into its parts.

    Raises:
        UnsupportedComponent: If a component is not supported.
    """
    core = {**tokenizer, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    model = tokenizer["model"]
    added_tokens = [token for token in tokenizer["added_tokens"] if token["content"]]
    normalized = [token for token in added_tokens if token["normalized"]]
    splitters = {
        "Unigram": _unigram,
        "WordPiece": _wordpiece,
        "BPE": partial(_bpe, has_normalized_tokens=bool(normalized)),
    }
    if model.get("type") not in splitters:
        raise UnsupportedComponent(f"a model of the type {model.get('type')}")
    parts = splitters[model["type"]](core)
    ignored = [token["content"] for token in added_tokens if token["special"] and not parse_special_tokens]
    return replace(
        parts,
        literals=Literals([token for token in added_tokens if not token["normalized"]], ignored),
        normalized_literals=_normalized_literals(normalized, ignored, tokenizer["normalizer"], parts),
    )


def _normalized_literals(
    tokens: Sequence[Mapping], ignored: Sequence[str], normalizer: Mapping | None, parts: TokenizerParts
) -> Literals:
    if not {token["content"] for token in tokens} - set(ignored):
        return Literals([])
    if parts.kind == WORDPIECE or not parts.uniform:
        raise UnsupportedComponent("added tokens that are matched in normalized text")
    if any(token["single_word"] or token["lstrip"] or token["rstrip"] for token in tokens):
        raise UnsupportedComponent("added tokens with options that are matched in normalized text")
    contents = [token["content"] for token in tokens]
    if normalizer is not None:
        contents = list(map(normalization.build_normalizer(normalizer).normalize_str, contents))
    if len(set(contents)) < len(contents) or not all(contents):
        raise UnsupportedComponent("added tokens that are equal or empty after normalization")
    hidden = [content for content, token in zip(contents, tokens, strict=True) if token["content"] in ignored]
    return Literals(
        [{**token, "content": content} for content, token in zip(contents, tokens, strict=True)], hidden
    )


def _unigram(core: dict) -> TokenizerParts:
    normalizer = core["normalizer"]
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if parts == byte_units.PARTS:
        core["normalizer"] = None
        return TokenizerParts(BYTE_UNIGRAM, core, byte_units.CUTS, normalization.steps(normalizer))
    return _marked_words(UNIGRAM, core, parts, normalizer)


def _marked_words(
    kind: str, core: dict, parts: Sequence[Mapping], normalizer: Mapping | None
) -> TokenizerParts:
    """Returns the parts of a tokenizer whose words begin with marks."""
    mark = []
    if len(parts) == 2 and parts[0]["type"] == "WhitespaceSplit":
        if parts[1].get("prepend_scheme") != "always":
            raise UnsupportedComponent(
                "WhitespaceSplit before a Metaspace whose prepend_scheme is not 'always'"
            )
        mark.append(_mark_words)
        parts = parts[1:]
    if len(parts) != 1 or parts[0]["type"] != "Metaspace":
        raise UnsupportedComponent(f"the pre-tokenizer {_type_names(parts)}")
    metaspace = parts[0]
    if metaspace["replacement"] != "▁" or not metaspace.get("split", True):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(metaspace, ensure_ascii=False)}")
    marks_first_only = metaspace["prepend_scheme"] == "first"
    if marks_first_only and not _keeps_first(normalizer):
        raise UnsupportedComponent(
            "a normalizer that may remove the first character, before a Metaspace with prepend_scheme 'first'"
        )
    core.update(normalizer=None, pre_tokenizer=metaspace)
    steps = normalization.steps(normalizer)
    return TokenizerParts(kind, core, _BEFORE_SPACE, steps, mark, uniform=not marks_first_only)


def _mark_words(texts: Sequence[str]) -> list[str]:
    """Puts a space before each word, unless the word begins with the mark that Metaspace would insert there."""
    return [
        _mark_single(text.replace("\n", " ").strip(" "))
        if has_single and "▁" not in text
        else _mark_each(text)
        for text, has_single in zip(texts, normalization.has_single_spaces(texts), strict=True)
    ]


def _mark_single(text: str) -> str:
    return " " + text if text else ""


def _mark_each(text: str) -> str:
    if "▁" in text or any(char in text for char in normalization.ONLY_PYTHON_SPACE):
        words = filter(None, re.split(f"[{normalization.RUST_SPACE}]+", text))
        return "".join(word if word.startswith("▁") else " " + word for word in words)
    return _mark_single(" ".join(text.split()))


def _keeps_first(normalizer: Mapping | None) -> bool:
    """Determines whether the normalizer never removes a text's first character."""
    for part in _sequence(normalizer, "normalizers"):
        replaces = part["type"] == "Replace" and part["content"]
        strips_right = part["type"] == "Strip" and not part["strip_left"]
        if not (part["type"] in _KEEP_FIRST or replaces or strips_right):
            return False
    return True


def _wordpiece(core: dict) -> TokenizerParts:
    normalizer, pre_tokenizer = core["normalizer"], core["pre_tokenizer"]
    if not pre_tokenizer or pre_tokenizer["type"] != "BertPreTokenizer":
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(pre_tokenizer)}")
    core["normalizer"] = None
    splitter = make_splitter([pre_tokenizer])
    return TokenizerParts(WORDPIECE, core, _WORDPIECE, normalization.steps(normalizer), splitter=splitter)


def _bpe(core: dict, *, has_normalized_tokens: bool) -> TokenizerParts:
    model, normalizer = core["model"], core["normalizer"]
    for option in ("dropout", "continuing_subword_prefix"):
        if model.get(option):
            raise UnsupportedComponent(f"the BPE option {option} = {model[option]!r}")
    if model["byte_fallback"] and model["end_of_word_suffix"]:
        raise UnsupportedComponent("the BPE option end_of_word_suffix with byte fallback")
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    core["normalizer"] = None
    if parts and parts[-1]["type"] == "Metaspace" and parts[-1].get("split", True):
        return _marked_words(WORD_BPE, core, parts, normalizer)
    if model["byte_fallback"] and not byte_level.never_falls_back(parts, model["vocab"]):
        return _sentencepiece_bpe(core, parts, normalizer, has_normalized_tokens)
    steps = normalization.steps(normalizer)
    byte_levels = [part for part in parts if part["type"] == "ByteLevel"]
    if not byte_levels and parts:
        return TokenizerParts(WORD_BPE, core, None, steps, splitter=make_splitter(parts))
    if len(byte_levels) != 1:
        raise UnsupportedComponent(f"the pre-tokenizer {_type_names(parts)}")
    has_prefix_space = byte_levels[0]["add_prefix_space"]
    if has_prefix_space and parts[0]["type"] != "ByteLevel":
        raise UnsupportedComponent("a prefix space for each word")
    splitter = make_splitter(parts)
    if not splitter.levels:
        raise UnsupportedComponent("a ByteLevel pre-tokenizer that does not split")
    core["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": byte_level.without_prefix(parts)}
    marks = []
    if has_prefix_space:
        marks.append(
            normalization.for_each(lambda text: " " + text if text and not text.startswith(" ") else text)
        )
    cuts = byte_level.CUTS if byte_level.can_be_cut(parts) else None
    return TokenizerParts(BYTE_LEVEL, core, cuts, steps, marks, splitter)


def _sentencepiece_bpe(
    core: dict, parts: Sequence[Mapping], normalizer: Mapping | None, has_normalized_tokens: bool
) -> TokenizerParts:
    model = core["model"]
    for option in ("ignore_merges", "end_of_word_suffix"):
        if model[option]:
            raise UnsupportedComponent(f"the BPE option {option} without a pre-tokenizer that splits")
    if model["unk_token"] is None and byte_level.missing_byte_tokens(model["vocab"]):
        # What remains of a text around a dropped character is merged, so no cut is safe.
        raise UnsupportedComponent("a BPE model with byte fallback that drops characters")
    symbols = {*BYTE_TOKENS, model["unk_token"]}
    if any(not symbols.isdisjoint(merge) for merge in model["merges"]):
        raise UnsupportedComponent("merges of tokens that stand for bytes or unknown characters")
    normalizers, mark, uniform = _sequence(normalizer, "normalizers"), [], True
    if len(parts) == 1 and parts[0]["type"] == "Metaspace":
        scheme = parts[0]["prepend_scheme"]
        unknown_first = scheme == "first" and not _keeps_first(normalizer)
        if parts[0].get("split", True) or parts[0]["replacement"] != "▁" or unknown_first:
            raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts[0], ensure_ascii=False)}")
        if scheme != "never":
            mark.append(
                normalization.for_each(
                    lambda text: text if not text or text.startswith(_MARKS) else " " + text
                )
            )
        uniform = scheme != "first"
    elif not normalizers or normalizers[-1] != _SPACES_TO_MARKS or not _splits_nothing(parts):
        raise UnsupportedComponent(
            f"the pre-tokenizer {_type_names(parts)} before a BPE model with byte fallback"
        )
    elif not has_normalized_tokens:
        # A space is as good as a mark from here on, and text with spaces is smaller.
        normalizers = normalizers[:-1]
        if normalizers and normalizers[-1] == {"type": "Prepend", "prepend": "▁"}:
            normalizers[-1] = {"type": "Prepend", "prepend": " "}
    core.update(normalizer=_SPACES_TO_MARKS, pre_tokenizer=None)
    before = "".join(map(re.escape, sorted({*_MARKS, *characters_before_marks(model["vocab"])})))
    cuts = re.compile(f"(?<=[^{before}])(?=[▁ ][^▁ ])")
    steps = normalization.steps({"type": "Sequence", "normalizers": normalizers})
    return TokenizerParts(SENTENCEPIECE, core, cuts, steps, mark, uniform=uniform)


def _splits_nothing(parts: Sequence[Mapping]) -> bool:
    """Determines whether a pre-tokenizer splits no text without spaces: none, or Gemma's."""
    return not parts or (
        len(parts) == 1 and parts[0]["type"] == "Split" and parts[0]["pattern"] == {"String": " "}
    )


def characters_before_marks(vocab: Mapping[str, int]) -> set[str]:
    """Returns the characters before a word's mark in tokens. Text can be cut before a mark that follows any other.

    >>> sorted(characters_before_marks({"▁the": 0, "a▁b": 1, "▁▁": 2}))
    ['a', '▁']
    """
    return {token[index - 1] for token in vocab for index in range(1, len(token)) if token[index] == "▁"}


def _sequence(part: Mapping | None, key: str) -> list[Mapping]:
    """Flattens nested sequences of components."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for child in part[key] for inner in _sequence(child, key)]
    return [part]


def _type_names(parts: Sequence[Mapping]) -> str:
    return " + ".join(part["type"] for part in parts) or "None"
