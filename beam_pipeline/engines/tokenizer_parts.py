"""Analysis of a tokenizer: its parts, and where a text can be cut without changing its tokens.

`split_tokenizer` supports only the components and options listed in this module and in `byte_level`, which the tests
compare with `tokenizers`. Text for any other tokenizer is encoded by `tokenizers` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from beam_pipeline.engines.literals import Literals
from beam_pipeline.tokenization import byte_level, byte_units, normalization
from beam_pipeline.tokenization.byte_digits import is_split_otherwise, split_around_bytes
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent, make_unreachable

UNIGRAM, WORDPIECE, BYTE_LEVEL, SENTENCEPIECE = "Unigram", "WordPiece", "byte-level BPE", "SentencePiece BPE"
BYTE_UNIGRAM = "byte-level Unigram"

# Where a normalized text can be cut, by the kind of tokenizer.
# Unigram: before every space, which is part of the word after it. (Only here the character before it does not matter.)
_BEFORE_SPACE = re.compile("(?= )")
# WordPiece: also before punctuation, which is a word of its own.
_WORDPIECE = re.compile(r"(?= )|(?<=[A-Za-z0-9])(?=[!-/:-@\[-`{-~])")

# tokie's pre-tokenizer for byte-level Unigram models, see `byte_unigram`.
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}

# Normalizers that never remove a text's first character. `Metaspace` with the scheme "first" prepends its mark only if
# the first remaining character is the original text's first.
_KEEP_FIRST = (*normalization.UNICODE_FORMS, "Prepend")


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer, split into the parts that fast engines need."""

    kind: str
    """The kind of its model and pre-tokenizer: one of the constants above."""
    core: Mapping
    """The `tokenizer.json` of its model and the rest of its components, for the fast library. It adds no tokens."""
    exact: Mapping
    """The same for `tokenizers`, which supports more components: no `split`, and the unchanged model."""
    cuts: re.Pattern
    """Matches where a normalized text can be cut: the ids of the pieces, concatenated, are the ids of the text."""
    normalize: Sequence[normalization.Step] = ()
    """The steps of its normalizer that come before `core`."""
    mark: Sequence[normalization.Step] = ()
    """The steps that come after `normalize`: the parts of its pre-tokenizer that `core` lacks."""
    split: byte_level.Splitter | None = None
    """Splits text further for `core`. None if there is nothing to split."""
    is_inexact: Callable[[str], bool] | None = None
    """Determines whether `core`, with `split`, may differ on a character. None if it never does."""
    removed_tokens: Collection[str] = ()
    """Tokens that `core` lacks. `core` is not exact on text with these strings."""
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
    splitters = {"Unigram": _unigram, "WordPiece": _wordpiece, "BPE": _bpe}
    if model.get("type") not in splitters:
        raise UnsupportedComponent(f"a model of the type {model.get('type')}")
    parts = splitters[model["type"]](core)
    added_tokens = [token for token in tokenizer["added_tokens"] if token["content"]]
    normalized = [token for token in added_tokens if token["normalized"]]
    ignored = [token["content"] for token in added_tokens if token["special"] and not parse_special_tokens]
    return replace(
        parts,
        literals=_literals([token for token in added_tokens if not token["normalized"]], ignored),
        normalized_literals=_normalized_literals(normalized, ignored, tokenizer["normalizer"], parts),
    )


def _literals(tokens: Sequence[Mapping], ignored: Sequence[str]) -> Literals:
    try:
        return Literals(tokens, ignored)
    except RecursionError as error:
        raise UnsupportedComponent("an added token that is hundreds of characters long") from error


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
    return _literals(
        [{**token, "content": content} for content, token in zip(contents, tokens, strict=True)], hidden
    )


def _unigram(core: dict) -> TokenizerParts:
    normalizer = core["normalizer"]
    mark = []
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    if parts == byte_units.PARTS:
        exact = {**core, "normalizer": None}
        core.update(normalizer=None, pre_tokenizer=_METASPACE)
        return TokenizerParts(BYTE_UNIGRAM, core, exact, byte_units.CUTS, normalization.steps(normalizer))
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
    return TokenizerParts(UNIGRAM, core, core, _BEFORE_SPACE, steps, mark, uniform=not marks_first_only)


def _mark_words(texts: list[str]) -> list[str]:
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
    normalizers, pre_tokenizer = _sequence(core["normalizer"], "normalizers"), core["pre_tokenizer"]
    if (
        len(normalizers) != 1
        or normalizers[0]["type"] != "BertNormalizer"
        or not normalizers[0]["clean_text"]
    ):
        raise UnsupportedComponent(f"the normalizer {json.dumps(core['normalizer'])}")
    normalizer = normalizers[0]
    if not normalizer["handle_chinese_chars"]:
        raise UnsupportedComponent("a BertNormalizer with handle_chinese_chars off")
    if not pre_tokenizer or pre_tokenizer["type"] != "BertPreTokenizer":
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(pre_tokenizer)}")
    if core["model"]["continuing_subword_prefix"] != "##":
        raise UnsupportedComponent(f"the subword prefix {core['model']['continuing_subword_prefix']!r}")
    steps = []
    if normalizer["lowercase"] and normalizer["strip_accents"] is False:
        # tokie strips accents if it lower-cases. Cleaning and lower-casing can be done in any order.
        steps = normalization.steps({"type": "Lowercase"})
        normalizer = {**normalizer, "lowercase": False}
    core["normalizer"] = normalizer
    return TokenizerParts(WORDPIECE, core, core, _WORDPIECE, steps)


def _bpe(core: dict) -> TokenizerParts:
    model, normalizer = core["model"], core["normalizer"]
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise UnsupportedComponent(f"the BPE option {option} = {model[option]!r}")
    steps = normalization.steps(normalizer)
    parts = _sequence(core["pre_tokenizer"], "pretokenizers")
    core["normalizer"] = None
    if model.get("byte_fallback") and not byte_level.never_falls_back(parts, model["vocab"]):
        marks, uniform = _unsplit_metaspace(parts, normalizer)
        missing = byte_level.missing_byte_tokens(model["vocab"])
        if missing:
            raise UnsupportedComponent(f"a model with byte fallback that lacks the token {missing[0]}")
        core["pre_tokenizer"] = None
        characters_before_marks = _before_inner_marks(model["vocab"]) | {"▁"}
        cuts = re.compile(f"(?<=[^{''.join(map(re.escape, sorted(characters_before_marks)))}])(?=▁[^▁])")
        # gigatoken caches no words if many tokens contain a mark after another character. InternLM 2 has some for
        # lines of spaces, and for tabs before spaces, which are rare in text.
        removed_tokens = list(filter(re.compile("[\t\n]▁").search, model["vocab"]))
        exact = {**core}
        core["model"] = make_unreachable(model, removed_tokens)[0]
        return TokenizerParts(
            SENTENCEPIECE, core, exact, cuts, steps, marks, removed_tokens=removed_tokens, uniform=uniform
        )
    pre_tokenizer, has_prefix_space, split = byte_level.byte_level_pre_tokenizer(parts)
    exact = {**core, "pre_tokenizer": {"type": "Sequence", "pretokenizers": byte_level.without_prefix(parts)}}
    core.update(pre_tokenizer=pre_tokenizer, model=byte_level.known_bytes_model(model))
    marks = []
    if has_prefix_space:
        marks.append(
            normalization.for_each(lambda text: " " + text if text and not text.startswith(" ") else text)
        )
    is_inexact = is_split_otherwise if split_around_bytes(parts) else None
    return TokenizerParts(BYTE_LEVEL, core, exact, byte_level.CUTS, steps, marks, split, is_inexact)


def _before_inner_marks(vocab: Mapping[str, int]) -> set[str]:
    """Returns the characters before a word's mark in tokens. Text can be cut before a mark that follows any other.

    >>> sorted(_before_inner_marks({"▁the": 0, "a▁b": 1, "▁▁": 2}))
    ['a', '▁']
    """
    return {token[index - 1] for token in vocab for index in range(1, len(token)) if token[index] == "▁"}


def _unsplit_metaspace(
    parts: Sequence[Mapping], normalizer: Mapping | None
) -> tuple[list[normalization.Step], bool]:
    """Converts a pre-tokenizer that does not split to steps.

    Returns:
        The steps, and whether they treat all texts between added tokens alike.
    """
    normalizers = _sequence(normalizer, "normalizers")
    if parts and parts[0]["type"] == "Split" and parts[0]["pattern"] == {"String": " "}:
        # It splits at spaces, and there are none: Gemma.
        last_normalizer = normalizers[-1] if normalizers else {}
        if (
            len(parts) == 1
            and last_normalizer.get("pattern") == {"String": " "}
            and " " not in last_normalizer["content"]
        ):
            return [], True
    if not parts:
        return [], True
    if len(parts) > 1 or parts[0]["type"] != "Metaspace" or parts[0].get("split", True):
        raise UnsupportedComponent(
            f"the pre-tokenizer {_type_names(parts)} before a BPE model with byte fallback"
        )
    scheme = parts[0]["prepend_scheme"]
    if parts[0]["replacement"] != "▁" or (scheme == "first" and not _keeps_first(normalizer)):
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts[0], ensure_ascii=False)}")

    def mark(text: str) -> str:
        text = text.replace(" ", "▁")
        return "▁" + text if text and scheme != "never" and not text.startswith("▁") else text

    return [normalization.for_each(mark)], scheme != "first"


def _sequence(part: Mapping | None, key: str) -> list[Mapping]:
    """Flattens nested sequences of components."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [inner for child in part[key] for inner in _sequence(child, key)]
    return [part]


def _type_names(parts: Sequence[Mapping]) -> str:
    return " + ".join(part["type"] for part in parts) or "None"
