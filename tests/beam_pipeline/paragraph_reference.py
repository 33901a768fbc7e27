"""A reference for the removal of repeated paragraphs in plain Python, which holds the whole corpus."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace

from tests.beam_pipeline.near_reference import shingles

_SCRIPTS = ("CJK UNIFIED", "HIRAGANA", "KATAKANA")
_ALL_WORDS = 1 << 30


def without_repeated(texts: list[str], copies: int, min_words: int, *, of_blocks: bool) -> list[str | None]:
    """Returns each text without the paragraphs of more than `copies` texts, which the first of these keeps.

    Args:
        texts: All documents, in order.
        copies: The number of documents that may have a paragraph.
        min_words: Paragraphs with fewer words stay.
        of_blocks: Whether blank lines end paragraphs; otherwise each line does.

    Returns:
        None for texts of which nothing is left.
    """
    divided = [_paragraphs(text, of_blocks=of_blocks) for text in texts]
    keys = [[normalized_words(paragraph.content) for paragraph in paragraphs] for paragraphs in divided]
    documents: dict[tuple[str, ...], set[int]] = {}
    for number, own in enumerate(keys):
        for key in own:
            if len(key) >= min_words:
                documents.setdefault(key, set()).add(number)
    kept_already: set[tuple[str, ...]] = set()
    results: list[str | None] = []
    for paragraphs, own in zip(divided, keys, strict=True):
        rest = []
        for paragraph, key in zip(paragraphs, own, strict=True):
            if len(documents.get(key, ())) > copies and key in kept_already:
                continue
            kept_already.add(key)
            rest.append(paragraph)
        if rest and rest[-1] is not paragraphs[-1]:  # nothing follows the last
            rest[-1] = replace(rest[-1], after="")
        results.append("".join(each.before + each.content + each.after for each in rest) or None)
    return results


@dataclass
class _Paragraph:
    before: str
    """Blank lines before the first paragraph."""
    content: str
    after: str
    """The line feed and the blank lines after it."""


def _paragraphs(text: str, *, of_blocks: bool) -> list[_Paragraph]:
    paragraphs: list[_Paragraph] = []
    before, was_blank = "", True
    for line in re.findall(r"[^\n]*\n|[^\n]+\Z", text):
        content = line.removesuffix("\n").removesuffix("\r")
        after = line[len(content) :]
        if not line.strip() and paragraphs:
            paragraphs[-1].after += line
        elif not line.strip():
            before += line
        elif of_blocks and not was_blank:
            paragraphs[-1].content += paragraphs[-1].after + content
            paragraphs[-1].after = after
        else:
            paragraphs.append(_Paragraph(before, content, after))
            before = ""
        was_blank = not line.strip()
    return paragraphs


def normalized_words(text: str) -> tuple[str, ...]:
    [words] = shingles(text, _ALL_WORDS) or [()]
    return tuple(part for word in words for part in _separated(word).split())


def _separated(word: str) -> str:
    return "".join(
        f" {character} " if unicodedata.name(character, "").startswith(_SCRIPTS) else character
        for character in word
    )
