"""Corpora with planted near-duplicates, and degenerate ones."""

from __future__ import annotations

import random

from tests.beam_pipeline.conftest import make_documents


def edited(text: str, share: float, rng: random.Random) -> str:
    """Replaces a share of the words, one after the other at random places."""
    words = text.split(" ")
    for place in rng.sample(range(len(words)), max(1, round(share * len(words)))):
        words[place] = f"edit{rng.randrange(10**6)}"
    return " ".join(words)


def planted(originals: int, seed: int = 0) -> list[str]:
    """Returns texts of some 100 words with near-duplicates of several kinds among them, in random order."""
    rng = random.Random(seed)
    sentences = make_documents(originals * 12)
    texts = [" ".join(sentences[i * 12 : (i + 1) * 12]) for i in range(originals)]
    copies = []
    for text in texts[::2]:
        halves = text.split(" ")
        middle = len(halves) // 2
        kinds = (
            edited(text, 0.01, rng),
            edited(edited(text, 0.01, rng), 0.02, rng),
            edited(text, 0.2, rng),
            text.upper() + "!",
            " ".join(halves[: int(0.9 * len(halves))]),
            " ".join(halves[middle:] + halves[:middle]),
            text,
        )
        copies += rng.sample(kinds, 3)
    everything = texts + copies
    rng.shuffle(everything)
    return everything


def of_one_document(count: int) -> list[str]:
    """Returns a corpus of the same document."""
    return [" ".join(make_documents(12))] * count


def of_variants(count: int, seed: int = 0) -> list[str]:
    """Returns a corpus of variants of one document, each with another word in a place of its own."""
    rng = random.Random(seed)
    words = " ".join(make_documents(30)).split(" ")
    texts = []
    for number in range(count):
        place = rng.randrange(len(words))
        texts.append(" ".join([*words[:place], f"variant{number}", *words[place + 1 :]]))
    return texts


def with_a_common_shingle(count: int) -> list[str]:
    """Returns unrelated documents, of which 30% share a shingle."""
    rng = random.Random(0)
    texts = [" ".join(f"w{rng.randrange(10**6)}" for _ in range(40)) for _ in range(count)]
    return [
        text + (" all rights are reserved here" if number % 10 < 3 else "")
        for number, text in enumerate(texts)
    ]
