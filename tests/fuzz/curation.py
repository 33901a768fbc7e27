"""What a fuzz case removes from its documents and edits, and what must be left, by code of its own."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.beam_pipeline.near_reference import shingles
from tests.beam_pipeline.paragraph_reference import normalized_words, without_repeated

_MAIL = "ask ann@example.com"
_LINES = (
    "the mill turns raw text into rows",
    "one length of the text",
    "raw",
    "The mill: turns; raw text into ROWS",
)


@dataclass(frozen=True)
class Curation:
    """The options that remove or edit documents."""

    filters: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    """The items of the benchmark; none: there is no decontamination."""
    ngram: int = 5
    paragraph_copies: int | None = None
    """None: paragraphs stay."""
    of_blocks: bool = False
    dedup: str = "none"
    """How documents are compared: none, exact or near."""
    keeps_longest: bool = False
    """Whether the longest of equal or similar documents is kept; else the first."""
    restore_every: int = 0
    """Every so many of the documents with a known place is restored; 0: none is."""

    def options(self, folder: Path) -> list[str]:
        """Returns the options of `prepare`, given the folder of the files that `write` writes."""
        options = ["--filter", ",".join(self.filters)] if self.filters else []
        if self.items:
            options += ["--decontaminate", str(folder / "items.jsonl"), "--decontaminate_share", "0"]
            options += ["--decontaminate_ngram", str(self.ngram)]
        parts = [self.dedup] if self.dedup != "none" else []
        if self.paragraph_copies is not None:
            parts.append("paragraphs")
            options += ["--paragraph_copies", str(self.paragraph_copies), "--paragraph_min_words", "3"]
            options += ["--paragraph_end", "blank_line"] if self.of_blocks else []
        options += ["--dedup", "+".join(parts)] if parts else []
        options += ["--near_threshold", "1"] if self.dedup == "near" else []  # which no band can miss
        options += ["--dedup_keep", "longest"] if self.keeps_longest else []
        return options + (["--restore", str(folder / "restored.parquet")] if self.restore_every else [])

    @property
    def features(self) -> list[str]:
        """The names of what is removed, for counts of cases."""
        used = {
            **dict.fromkeys(self.filters, True),
            "decontamination": self.items,
            "paragraphs": self.paragraph_copies,
            self.dedup: self.dedup != "none",
            "longest": self.keeps_longest,
            "restore": self.restore_every,
        }
        return [name for name, value in used.items() if value]

    def write(self, folder: Path, paths: Sequence[str], places: Sequence[int]) -> None:
        """Writes the files that the options name.

        Args:
            folder: An existing folder.
            paths: The files of the documents to restore.
            places: Their places.
        """
        lines = (json.dumps({"text": item}) + "\n" for item in self.items)
        (folder / "items.jsonl").write_text("".join(lines))
        table = pa.table({"path": pa.array(paths, pa.string()), "place": pa.array(places, pa.int64())})
        pq.write_table(table, folder / "restored.parquet")

    def left(self, texts: Sequence[str], restored: Sequence[bool]) -> list[str]:
        """Returns the documents of the dataset.

        Args:
            texts: All documents, in order.
            restored: Whether each is restored.
        """
        documents = []
        for text, stays in zip(texts, restored, strict=True):
            edited, is_kept = self._filtered(text)
            if stays or is_kept:
                documents.append((edited, stays))
        benchmark = {ngram for item in self.items for ngram in _ngrams(item, self.ngram)}
        documents = [
            (text, stays) for text, stays in documents if stays or not benchmark & _ngrams(text, self.ngram)
        ]
        if self.paragraph_copies is not None:
            cut = without_repeated(
                [text for text, _ in documents], self.paragraph_copies, 3, of_blocks=self.of_blocks
            )
            documents = [
                (text if stays else rest, stays)
                for (text, stays), rest in zip(documents, cut, strict=True)
                if stays or rest is not None
            ]
        key_of = {"none": None, "exact": str, "near": lambda text: shingles(text, 5) or text.strip()}[
            self.dedup
        ]
        if key_of is None:
            return [text for text, _ in documents]
        kept: dict[object, int] = {}
        for number, (text, _) in enumerate(documents):
            best = kept.setdefault(key_of(text), number)
            if self.keeps_longest and len(text.encode()) > len(documents[best][0].encode()):
                kept[key_of(text)] = number
        return [
            text for number, (text, stays) in enumerate(documents) if stays or kept[key_of(text)] == number
        ]

    def _filtered(self, text: str) -> tuple[str, bool]:
        """Returns the text that filters leave, and whether the document stays."""
        is_kept = True
        for name in self.filters:
            if name == "pii":
                text = re.sub(r"\bann@example\.com\b", "<email>", text)
            else:
                edited, is_kept = text.replace("turns", ""), is_kept and len(text) % 7 != 0
                if edited and not edited.isspace():
                    text = edited
                else:
                    is_kept = False
        return text, is_kept


def by_length(texts: list[str], columns: dict[str, list]) -> dict[str, list]:
    """A function for --filter that the model above repeats."""
    return {
        "keep": [len(text) % 7 != 0 for text in texts],
        "texts": [text.replace("turns", "") for text in texts],
    }


def draw_curation(rng: random.Random, dedup: str) -> Curation:
    """Returns the curation of a case; for most cases none but `dedup`."""
    if rng.random() < 0.6:
        return Curation(dedup=dedup, keeps_longest=dedup == "near" and rng.random() < 0.5)
    names = ("pii", "tests.fuzz.curation:by_length")
    return Curation(
        filters=tuple(rng.sample(names, rng.choice((0, 0, 1, 2)))),
        items=rng.choice(((), (), ("the mill turns raw text into", "and rows of one length into rows"))),
        ngram=rng.choice((2, 3, 5)),
        paragraph_copies=rng.choice((None, 1, 2, 5)),
        of_blocks=rng.random() < 0.3,
        dedup=dedup,
        restore_every=rng.choice((0, 0, 1, 3)),
        keeps_longest=dedup == "near" and rng.random() < 0.5,
    )


def with_lines(rng: random.Random, text: str) -> str:
    """Adds lines to a document that others have, too, and an address."""
    lines = [text, *rng.sample(_LINES, rng.choice((0, 0, 1, 2, 3)))]
    lines += [_MAIL] if rng.random() < 0.2 else []
    rng.shuffle(lines)
    return rng.choice(("\n", "\n", "\n\n", "\r\n")).join(lines)


def _ngrams(text: str, size: int) -> set[tuple[str, ...]]:
    words = normalized_words(text)
    return {words[start : start + size] for start in range(len(words) - size + 1)}
