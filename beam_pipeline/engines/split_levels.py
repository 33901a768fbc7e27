"""Pre-tokenizers that split text, as levels of the native engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from beam_pipeline.native.words import Level, Splitter
from beam_pipeline.tokenization.byte_level import GPT2_PATTERN, byte_characters
from beam_pipeline.tokenization.patterns import NO_MAXIMUM, Program, literal
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent

_BLOCK = 256
_MOST_LEVELS = 8  # MOST_LEVELS in words.h


def make_splitter(parts: Sequence[Mapping]) -> Splitter:
    """Converts a pre-tokenizer.

    Args:
        parts: Its components in a `tokenizer.json`, without nested sequences. Those after a `ByteLevel` split the
            characters that stand for bytes.

    Raises:
        UnsupportedComponent: If one is not supported.
    """
    program, levels, by_bytes = Program(), [], False
    for part in parts:
        for kind, keeps_matches, keeps_gaps, expression, maximum in _splits(part):
            first = len(program.alternatives)
            count = program.add_run(kind, maximum) if kind else program.add_pattern(expression)
            levels.append(Level(first, count, keeps_matches, keeps_gaps, by_bytes))
        by_bytes = by_bytes or part["type"] == "ByteLevel"
    if len(levels) > _MOST_LEVELS:
        raise UnsupportedComponent(f"a pre-tokenizer with more than {_MOST_LEVELS} splits")

    def classes_of(characters: str) -> np.ndarray:
        bits = np.zeros(len(characters), np.uint32)
        for number, character_class in enumerate(program.classes):
            bits |= character_class.contains(characters).astype(np.uint32) << np.uint32(number)
        return bits

    def classes_of_block(block: int) -> np.ndarray:
        # Half of a pair is no character, and not in UTF-8.
        codes = [code for code in range(_BLOCK * block, _BLOCK * (block + 1)) if not 0xD800 <= code < 0xE000]
        bits = np.zeros(_BLOCK, np.uint32)
        bits[np.array(codes, np.int64) - _BLOCK * block] = classes_of("".join(map(chr, codes)))
        return bits

    of_bytes = np.zeros(256, np.uint32)
    if any(level.by_bytes for level in levels):
        of_bytes = classes_of("".join(char for _, char in sorted(byte_characters().items())))
    return Splitter(levels, program.alternatives, program.instructions, of_bytes, classes_of_block)


_Split = tuple[str, bool, bool, str, int]
"""The kind of a class; whether matches and gaps are kept; a regular expression, or a run of up to a maximum."""


def _splits(part: Mapping) -> list[_Split]:
    kind = part["type"]
    if kind == "ByteLevel":
        return [("", True, True, GPT2_PATTERN, 0)] if part.get("use_regex", True) else []
    if kind == "Digits":
        return [(kind, True, True, "", 1 if part["individual_digits"] else NO_MAXIMUM)]
    if kind == "WhitespaceSplit":
        return [(kind, False, True, "", 1)]
    if kind == "BertPreTokenizer":
        return [("WhitespaceSplit", False, True, "", 1), ("Punctuation", True, True, "", 1)]
    if kind == "Punctuation" and part["behavior"] in ("Isolated", "Contiguous", "Removed"):
        maximum = 1 if part["behavior"] == "Isolated" else NO_MAXIMUM
        return [(kind, part["behavior"] != "Removed", True, "", maximum)]
    if kind == "Split" and part["behavior"] in ("Isolated", "Removed"):
        ((pattern_kind, pattern),) = part["pattern"].items()
        expression = pattern if pattern_kind == "Regex" else literal(pattern)
        removes = part["behavior"] == "Removed"
        return [("", not removes or part["invert"], not (removes and part["invert"]), expression, 0)]
    description = kind if len(part) == 1 else json.dumps(part, ensure_ascii=False)
    raise UnsupportedComponent(f"the pre-tokenizer {description}")
