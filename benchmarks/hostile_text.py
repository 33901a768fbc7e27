"""Random texts made of strings that are known to confuse tokenizers."""

from __future__ import annotations

import random
from collections.abc import Sequence

ATOMS = [
    *["the", "Hello", "world", "a", "I", "naïve", "Übermut", "straße", "ﬁne", "½", "①", "Ａ", "カ", "ｶﾞ"],
    *["漢字", "你好世界", "日本語テキスト", "한국어", "हिन्दी", "ไทยภาษา"],
    *["العربية", "مَرْحَبًا", "עברית", "Ελληνικά"],
    *["ὈΔΥΣΣΕΎΣ", "Привет", "и\u0306", "e\u0301", "n\u0303o", "ශ්‍රී", "বাংলা", "தமிழ்", "ქართული", "አማርኛ"],
    *["👍", "👍🏽", "👨‍👩‍👧‍👦", "🇩🇪", "🏳️‍🌈", "\u200b", "\u200d", "\u200e", "\ufeff", "\u00ad", "\u2060"],
    *["\x00", "\x01", "\x1b", "\x1c", "\x7f", "\x85", "\x9f", "\u2028", "\xa0", "\u3000", "\u2003"],
    *["\u1680", "\ufffd", "\U000e0041", "\U0010ffff", "\ue000", "\ufffe", "\u0378", "\u0897", "\U00016ec4"],
    *["\u32ff", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", " \n ", "▁", "▁▁", "_"],
    *[".", ",", "!", "?", "...", "…", "--", "—", "'", "’", "'s", "'S", "'ll", "I'm", '"', "``", "''", "("],
    *[")", "[", "]", "<", ">", "/", "\\", "|", "@", "#", "##", "##ing", "$", "€", "%", "&", "*", "=", "~"],
    *["`", "0", "12", "123", "12345678", "3.14", "1,000", "²", "٣", "४", "Ⅷ", "http://a.example/?b=c"],
    *["foo_bar", "camelCase", "x" * 50, "a" * 120, "é" * 60, "字" * 60, "0" * 40, "." * 30, "=" * 70, "İ"],
    *["ı", "ſ", "ß", "Σ", "ς", "ǅ", "ﷺ", "\u0300", "\u0301\u0302", "\u093f", "\u0e33", "\u1ab0", "\u20dd"],
    *["Å", "ﾊﾟ", "㍿", "ª", "µ", "𝒜", "𐐀", "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[MASK]", "[CLS]"],
    *["[UNK]", "<|endoftext|>", "<0x0A>", "<sep>"],
]
# Strings that kinds of tokenizers treat in their own way: runs of spaces (added tokens of code models), of line breaks
# and tabs, of - and _ (ties between pieces), of repeated letters, digits in groups, prefixes of graphemes.
RUNS = [
    *[" " * n for n in (4, 7, 8, 15, 16, 24, 25, 31, 32, 40, 100)],
    *["\t" * n for n in (2, 3, 9)],
    *["\n" * n for n in (3, 5, 12)],
    *["-" * n for n in (2, 3, 7, 16, 41, 80)],
    *["_" * n for n in (2, 3, 7, 16, 41, 80)],
    *["- - -", "_-_-", "-_", "*" * 9, "#" * 33, "1 2 3", "0x1F", "1234567890123", "½⅓", "٣٤٥", "ⅣⅧ", "१२३"],
    *[
        "\u0600a",
        "\u0d4eക",
        "\u0e33",
        "ก\u0e33",
        "ᄀ\u1161\u11a8",
        "가\u11a8",
        "\U0001f1e9\U0001f1ea\U0001f1ea",
    ],
    *["क्ष", "e\u0301\u0302\u0303", "\u0301", "\r\n\r\n", "\uff9e", "ﾎﾟ", "\u212b", "\u2126", "\u1e9b\u0323"],
    *["{", "}", "{{}}", "\\n", "^", "~~", "<", "<<", "a{b}c", "`x`", "<br>", "</div>", "<unused7>", "<0xE9>"],
    *[
        "'T",
        "'Ve",
        "don'T",
        "\u017fs",
        "'\u017f",
        "\u212a",
        "ﬀ",
        "㎏",
        "\u3099",
        "か\u3099",
        "㌀",
        "\u2011",
        "\u2044",
    ],
    *[
        "<0x00>",
        "<0xFF>",
        "<0x7E>",
        "<|im_start|>",
        "|||IP_ADDRESS|||",
        "[unused1]",
        "<extra_id_0>",
        "▁<extra_id_0>",
    ],
    *[
        "<|endoftext|",
        "<|endoftext|>>",
        "<<s>>",
        "</s",
        "[INST]",
        "<start_of_turn>",
        "<|fim_prefix|>",
        "\u200b\u200b",
    ],
]
_BLOCKS = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x3000), (0x3000, 0xD800)]
_BLOCKS += [(0xE000, 0x10000), (0x10000, 0x20000)]
WORDS = [" the", " of", " and", " people", " Tokyo", " 2019", " it"]


def hard_text(rng: random.Random, parts: int) -> str:
    """Joins at most `parts` random strings."""
    return _join(rng, parts, ATOMS)


def hostile_text(rng: random.Random, parts: int, literals: Sequence[str] = ()) -> str:
    """Joins at most `parts` random strings, some of which are `literals`: a tokenizer's own added tokens and pieces."""
    atoms = [*ATOMS, *RUNS]
    return _join(rng, parts, rng.choice([ATOMS, RUNS, atoms, [*RUNS, *literals], literals or RUNS]))


def _join(rng: random.Random, parts: int, atoms: Sequence[str]) -> str:
    found = []
    for _ in range(rng.randint(0, parts)):
        kind = rng.random()
        if kind < 0.7:
            found.append(rng.choice(atoms))
        elif kind < 0.8:
            found.append(chr(rng.randrange(*rng.choice(_BLOCKS))))
        elif kind < 0.95:
            found.append(rng.choice(WORDS))
        else:
            found.append("".join(rng.choices("abcdefghijklmnop ", k=rng.randint(1, 80))))
    return "".join(found)
