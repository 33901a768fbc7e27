"""Writes a corpus of real text with planted near-duplicates, for `near.py`, and knows which they are."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

THRESHOLD, SHINGLE = 0.8, 5

_BOILERPLATE = (
    "This page is provided as is, without warranty of any kind. By using this site you agree to its terms of use and "
    "to its privacy policy. All trademarks are the property of their respective owners. Subscribe to our newsletter to "
    "be the first to hear of new articles, and follow us for daily updates. Copyright by the authors; all rights "
    "reserved worldwide."
)


@dataclass(frozen=True)
class Planted:
    """A planted near-duplicate: the numbers of two documents, how one was made of the other, and their similarity."""

    original: int
    copy: int
    kind: str
    similarity: float


def write_corpus(text: Path, target: Path, documents: int, seed: int = 0) -> list[Planted]:
    """Writes jsonl of `documents` documents, a third of which are changed copies of others, in random order."""
    rng = random.Random(seed)
    originals = list(read_documents(text, documents - documents // 3))
    texts = list(originals)
    sources: list[tuple[int, str] | None] = [None] * len(originals)
    kinds = list(KINDS)
    while len(texts) < documents and originals:
        number = rng.randrange(len(originals))
        kind = kinds[len(texts) % len(kinds)]
        texts.append(KINDS[kind](originals[number], rng))
        sources.append((number, kind))
    order = list(range(len(texts)))
    rng.shuffle(order)
    place = {number: index for index, number in enumerate(order)}
    with target.open("w", encoding="utf-8") as file:
        for number in order:
            file.write(json.dumps({"text": texts[number]}, ensure_ascii=False) + "\n")
    return [
        Planted(place[source[0]], place[number], source[1], similarity(texts[source[0]], texts[number]))
        for number, source in enumerate(sources)
        if source is not None
    ]


def read_documents(text: Path, count: int) -> Iterator[str]:
    """Yields documents of consecutive paragraphs with 100 to 400 words."""
    paragraphs: list[str] = []
    words = 0
    with text.open(encoding="utf-8") as lines:
        for line in lines:
            paragraphs.append(line.rstrip("\n"))
            words += line.count(" ") + 1
            if words >= 100:
                yield " ".join("\n".join(paragraphs).split(" ")[:400])
                count -= 1
                paragraphs, words = [], 0
            if not count:
                return


def _edited(share: float, blocks: bool = False):
    """Replaces a share of the words, at random places or as one block."""

    def edit(text: str, rng: random.Random) -> str:
        words = text.split(" ")
        count = max(1, round(share * len(words)))
        first = rng.randrange(max(1, len(words) - count))
        places = (
            range(first, min(len(words), first + count)) if blocks else rng.sample(range(len(words)), count)
        )
        for place in places:
            words[place] = f"word{rng.randrange(10**6)}"
        return " ".join(words)

    return edit


def _shuffled(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    parts = [words[start : start + 60] for start in range(0, len(words), 60)]
    rng.shuffle(parts)
    return "\n".join(" ".join(part) for part in parts)


def _truncated(text: str, rng: random.Random) -> str:
    return text[: round(len(text) * rng.uniform(0.7, 0.99))]


def _with_boilerplate(text: str, rng: random.Random) -> str:
    return f"{text}\n{_BOILERPLATE}"


KINDS = {
    "1% of words": _edited(0.01),
    "2% of words": _edited(0.02),
    "5% of words": _edited(0.05),
    "10% of words": _edited(0.1),
    "20% of words": _edited(0.2),
    "5% in a block": _edited(0.05, blocks=True),
    "10% in a block": _edited(0.1, blocks=True),
    "20% in a block": _edited(0.2, blocks=True),
    "shuffled parts": _shuffled,
    "truncated": _truncated,
    "boilerplate": _with_boilerplate,
    "case and punctuation": lambda text, rng: text.upper().replace(",", " -"),
}


def shingles(text: str) -> set[tuple[str, ...]]:
    """Returns the shingles of a text, without any code of the pipeline."""
    normalized = unicodedata.normalize("NFKC", _separated(text)).casefold()
    words = _separated(normalized).split()
    return {tuple(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1))}


def _separated(text: str) -> str:
    """Replaces what is neither letter, mark nor number by spaces."""
    if text.isascii():
        return re.sub(r"[^A-Za-z0-9]", " ", text)
    return "".join(character if unicodedata.category(character)[0] in "LMN" else " " for character in text)


def similarity(one: str, other: str) -> float:
    """Returns the Jaccard similarity of the texts' sets of shingles."""
    first, second = shingles(one), shingles(other)
    return len(first & second) / len(first | second)
