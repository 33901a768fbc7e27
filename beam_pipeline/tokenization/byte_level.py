"""Byte-level BPE: the pre-tokenizers whose text can be encoded by gigatoken, and where it can be cut."""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from beam_pipeline.tokenization.byte_digits import split_around_bytes
from beam_pipeline.tokenization.tokenizer_json import (
    BYTE_ALPHABET,
    BYTE_TOKENS,
    UnsupportedComponent,
    make_unreachable,
    product,
)

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
# Qwen 3.5 and 3.6 treat a mark like a letter.
QWEN35_PATTERN = QWEN2_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}")
# Each line break ends a piece.
GPT4_PATTERN = LLAMA3_PATTERN.replace(r"\s*[\r\n]+", r"\s*[\r\n]")
# nanochat has the same pattern in tiktoken's spelling, with other groups of digits.
NANOCHAT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|"
    r"\s+(?!\S)|\s+"
)
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_PATTERN = (
    TEKKEN_PATTERN.replace(r"\p{M}]+|", rf"\p{{M}}]+{_CONTRACTION}|")
    .replace(r"\p{M}]*|", rf"\p{{M}}]*{_CONTRACTION}|")
    .replace(r"\p{N}|", r"\p{N}{1,3}|")
)
DEEPSEEK_PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
# The expressions of `Split` pre-tokenizers, one after the other. Together they match every character of a text.
PATTERNS = (
    (GPT2_PATTERN,),
    (LLAMA3_PATTERN,),
    (QWEN2_PATTERN,),
    (QWEN35_PATTERN,),
    (GPT4_PATTERN,),
    (O200K_PATTERN,),
    (TEKKEN_PATTERN,),
    DEEPSEEK_PATTERNS,
)

# Other spellings of these expressions.
_SPELLINGS = {NANOCHAT_PATTERN.replace("{1,2}", "{1,3}"): GPT4_PATTERN}

# Where a text can be cut: between a word and a space followed by a word, and between letters and a character that ends
# every run of letters.
CUTS = re.compile(
    r"(?<=\S)(?= \S)|(?<=[A-Za-z])(?=[0-9,.;:])|(?<=[ぁ-ゖァ-ヺ\u4e00-\u9fff])(?=[，。、；：！？])"
)


Splitter = Callable[[str], list[str]]
"""Splits a text into pieces, some of which may be empty."""


def known_bytes_model(model: Mapping) -> Mapping:
    """Prevents engines from finding tokens of a byte-level model that `tokenizers` never emits.

    `tokenizers` sees words in the byte alphabet, and reaches longer tokens only by merges, unless it ignores merges.
    Bytes that the vocabulary lacks get ids of their own, since gigatoken needs all. See `dropped_bytes`.
    """
    vocab = model["vocab"]
    missing = sorted(BYTE_ALPHABET - vocab.keys())
    first_id = 1 + max(vocab.values(), default=-1)
    model = {
        **model,
        "byte_fallback": False,
        "vocab": {**vocab, **{char: first_id + number for number, char in enumerate(missing)}},
    }
    reachable = (
        vocab.keys() if model["ignore_merges"] else {product(model, merge) for merge in model["merges"]}
    )
    unused = [
        key for key in vocab if len(key) > 1 and (key not in reachable or not BYTE_ALPHABET.issuperset(key))
    ]
    unused += [key for key in vocab if len(key) == 1 and key not in BYTE_ALPHABET]
    return make_unreachable(model, unused)[0]


def byte_level_pre_tokenizer(parts: Sequence[Mapping]) -> tuple[dict, bool, Splitter | None]:
    """Converts a byte-level pre-tokenizer to one that gigatoken supports.

    Args:
        parts: Its components, without nested sequences.

    Returns:
        The pre-tokenizer without prefix space and without `Digits`; whether it adds a prefix space; and a function that
        splits text for it, None if there is nothing to split.

    Raises:
        UnsupportedComponent: If gigatoken supports no equivalent.
    """
    names = " + ".join(part["type"] for part in parts) or "None"
    falcon_splitter = split_around_bytes(parts)
    if falcon_splitter is not None:
        return {**parts[1], "use_regex": True}, False, falcon_splitter
    if not parts or parts[-1]["type"] != "ByteLevel":
        raise UnsupportedComponent(f"the pre-tokenizer {names}")
    *splits, byte_level = parts
    regex, prefix = byte_level.get("use_regex", True), byte_level["add_prefix_space"]
    gpt2 = {**without_prefix(parts)[-1], "use_regex": True}
    if splits and prefix:
        raise UnsupportedComponent("a prefix space for each word")
    if not splits:
        if not regex:
            raise UnsupportedComponent("a ByteLevel pre-tokenizer that does not split")
        return gpt2, prefix, None
    if regex and len(splits) == 1 and splits[0]["type"] == "Digits" and splits[0]["individual_digits"]:
        return gpt2, False, split_numbers
    patterns, splitter = _supported_patterns([_complete_split(part) for part in splits])
    if regex or patterns not in PATTERNS:
        raise UnsupportedComponent(f"the pre-tokenizer {json.dumps(parts, ensure_ascii=False)}")
    if patterns == (GPT2_PATTERN,):
        return gpt2, False, None
    isolated = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*isolated, byte_level]}, False, splitter


def _supported_patterns(patterns: Sequence[str | None]) -> tuple[tuple[str | None, ...], Splitter | None]:
    """Returns equivalent expressions that may be among `PATTERNS`, and a function that splits text for them."""
    groups = [(pattern or "").replace(r"\p{N}{1,2}", r"\p{N}{1,3}") for pattern in patterns]
    splitter = split_digit_pairs if groups != patterns else None
    return tuple(_SPELLINGS.get(pattern, pattern) for pattern in groups), splitter


def never_falls_back(parts: Sequence[Mapping], vocab: Mapping[str, int]) -> bool:
    """Determines whether byte fallback has no effect, although the model's config enables it."""
    if not parts or parts[-1]["type"] != "ByteLevel":
        return False
    return vocab.keys() >= BYTE_ALPHABET or vocab.keys().isdisjoint(BYTE_TOKENS)


def without_prefix(parts: Sequence[Mapping]) -> list[Mapping]:
    """Returns the components of a byte-level pre-tokenizer without its prefix space."""
    return [{**part, "add_prefix_space": False} if part["type"] == "ByteLevel" else part for part in parts]


def _complete_split(part: Mapping) -> str | None:
    """Returns the expression of a `Split` whose matches become pieces; None for another component.

    Removing everything but the matches is the same as isolating the matches, if they cover the text.
    """
    behaviors = [("Isolated", False), ("Removed", True)]
    if part["type"] != "Split" or (part["behavior"], part["invert"]) not in behaviors:
        return None
    return part["pattern"].get("Regex")


def lost_bytes(tokenizer: Mapping) -> frozenset[int] | None:
    """Returns the bytes that a parsed BPE tokenizer has no token for; None if it is not a byte-level one."""
    model = tokenizer["model"]
    if model["byte_fallback"] and not missing_byte_tokens(model["vocab"]):
        return frozenset()
    parts = repr([tokenizer["normalizer"], tokenizer["pre_tokenizer"]])
    if (
        "'type': 'ByteLevel'" not in parts
        or model["continuing_subword_prefix"]
        or model["end_of_word_suffix"]
    ):
        return None
    return missing_bytes(model["vocab"])


def missing_byte_tokens(vocab: Mapping[str, int]) -> list[str]:
    """Returns the tokens for bytes of UTF-8, such as `<0xE9>`, that a vocabulary with byte fallback lacks."""
    return [
        token for byte, token in enumerate(BYTE_TOKENS) if byte not in _NEVER_IN_UTF8 and token not in vocab
    ]


def missing_bytes(vocab: Mapping[str, int]) -> frozenset[int]:
    """Returns the bytes of UTF-8 that the vocabulary lacks. `tokenizers` drops them."""
    return frozenset(byte for byte, char in byte_characters().items() if char not in vocab) - _NEVER_IN_UTF8


_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}


def byte_characters() -> dict[int, str]:
    """Returns the character of the byte alphabet that represents each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {
        **{byte: chr(byte) for byte in printable},
        **{byte: chr(256 + number) for number, byte in enumerate(unprintable)},
    }


def split_numbers(text: str) -> list[str]:
    """Isolates each character of the categories Nd, Nl and No, as the pre-tokenizer `Digits` does.

    >>> split_numbers("in 42")
    ['in ', '4', '', '2', '']
    """
    basic, supplementary = _numeric()
    pieces = basic.split(text)
    if len(text.encode("utf-16-le")) == 2 * len(text):
        return pieces
    return [part for piece in pieces for part in supplementary.split(piece)]


def split_digit_pairs(text: str) -> list[str]:
    """Cuts runs of three or more numeric characters into pairs. A word may precede the first, and follow the last.

    >>> split_digit_pairs("in 20195 of 42")
    ['in 20', '19', '5 of 42']
    """
    basic, both_planes = _digit_pairs()
    has_supplementary = len(text.encode("utf-16-le")) > 2 * len(text) and _numeric()[1].search(text)
    ends = [match.end() for match in (both_planes if has_supplementary else basic).finditer(text)]
    return [text[start:end] for start, end in itertools.pairwise([0, *ends, len(text)])]


@functools.cache
def _digit_pairs() -> tuple[re.Pattern, re.Pattern]:
    """Returns patterns for two numeric characters before a third: for text with those below U+10000 only, and any."""
    basic, supplementary = _numeric_characters()
    return re.compile(f"[{basic}]{{2}}(?=[{basic}])"), re.compile(
        f"[{basic}{supplementary}]{{2}}(?=[{basic}{supplementary}])"
    )


@functools.cache
def _numeric() -> tuple[re.Pattern, re.Pattern]:
    """Returns patterns for numeric characters below U+10000 and above.

    With both in one pattern, `re` cannot use its table of characters, and takes twenty times as long.
    """
    basic, supplementary = _numeric_characters()
    return re.compile(f"([{basic}])"), re.compile(f"((?=[\\U00010000-\\U0010ffff])[{supplementary}])")


def _numeric_characters() -> tuple[str, str]:
    # Above U+20000 there are only ideographs, tags and private use.
    basic, supplementary = (
        "".join(char for char in map(chr, codes) if unicodedata.category(char)[0] == "N")
        for codes in (range(0x10000), range(0x10000, 0x20000))
    )
    return basic, supplementary
