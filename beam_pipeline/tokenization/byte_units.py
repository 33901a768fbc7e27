"""The pre-tokenizer of byte-level Unigram tokenizers: units of text, written in the byte alphabet.

A unit is a word with the space or line break before it, or a run of further white space.
"""

from __future__ import annotations

import re

UNITS = r"[ \n]?[^ \n]+|[ \n]+(?![^ \n])"
"""Matches each unit."""

CUTS = re.compile(r"(?<=[^ \n])(?=[ \n])")
"""Matches where a text can be cut, since units begin there."""

PARTS = [
    {"type": "Split", "pattern": {"Regex": UNITS}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
]
"""The components of the pre-tokenizer in a `tokenizer.json`."""
