"""Byte-level BPE: the alphabet of bytes, patterns of pre-tokenizers, and where a text can be cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET, BYTE_TOKENS

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
# The expressions of `Split` pre-tokenizers, one after the other, after which text can be cut at `CUTS`.
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


def can_be_cut(parts: Sequence[Mapping]) -> bool:
    """Determines whether text can be cut at `CUTS`.

    Args:
        parts: The components of a byte-level pre-tokenizer, without nested sequences.
    """
    types = [part["type"] for part in parts]
    if parts[-1].get("use_regex", True):
        return types in (
            ["ByteLevel"],
            ["Digits", "ByteLevel"],
            ["Punctuation", "ByteLevel", "Digits", "Split"],
        )
    patterns = [(_complete_split(part) or "").replace(r"\p{N}{1,2}", r"\p{N}{1,3}") for part in parts[:-1]]
    return tuple(_SPELLINGS.get(pattern, pattern) for pattern in patterns) in PATTERNS


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
