"""Paragraphs that many documents have: finds them by their normalized text, and decides which copies are removed.

A paragraph is a line that is not blank, or a block of such lines. Its words are those of `curation.normalize`, and a
Chinese or Japanese character is a word. Paragraphs are equal if their words are. They are identified by a 128-bit hash
of their words, as documents are in exact deduplication, and not verified by their text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.curation.normalize import normalize_texts
from beam_pipeline.curation.removals import ALL_PARAGRAPHS, PARAGRAPHS, PASSAGES, Removals
from beam_pipeline.curation.single_characters import separate

OCCURRENCE = np.dtype(
    [
        ("document", "<u4"),
        ("paragraph", "<u4"),
        ("start", "<u4"),
        ("end", "<u4"),
        ("before", "<u4"),
        ("is_last", "?"),
    ]
)
"""A paragraph in a document: the document's number, the number of the paragraph among the different ones of the unit,
the first character to cut, the one after the last, the first one to cut if the rest of the document is cut, and whether
it is the document's last paragraph. What is cut includes the blank lines before the next paragraph."""

DOCUMENT = np.dtype([("document", "<u4"), ("characters", "<u4"), ("paragraphs", "<u4")])
"""A document: its number, and how many characters and paragraphs it has."""

HIT = np.dtype([("paragraph", "<u4"), ("documents", "<u8"), ("kept_unit", "<i8"), ("kept_document", "<u4")])
"""A paragraph of too many documents: its number in the unit, the number of documents, and the first of them."""


class Paragraphs(NamedTuple):
    """The paragraphs of consecutive documents of a unit."""

    occurrences: np.ndarray
    """`OCCURRENCE` [paragraphs], of those with enough words, in the order of the text."""
    hashes: np.ndarray
    """uint64 [paragraphs, 2]: their hashes."""
    documents: np.ndarray
    """`DOCUMENT` [documents]"""


@dataclass(frozen=True)
class Splitter:
    """How texts are divided, and which paragraphs are compared."""

    min_words: int
    """Paragraphs with fewer words are not compared."""
    of_blocks: bool
    """Whether blank lines separate paragraphs; otherwise, each line is one."""

    def split(self, texts: list[str], numbers: np.ndarray) -> Paragraphs:
        """Divides documents into paragraphs. Those of the result have the paragraph number 0.

        Args:
            texts: The documents.
            numbers: int64 [texts], the number of each in its unit.
        """
        owners, bounds, content = _spans(texts, of_blocks=self.of_blocks)
        documents = np.empty(len(texts), DOCUMENT)
        documents["document"] = numbers
        documents["characters"] = list(map(len, texts))
        documents["paragraphs"] = np.bincount(owners, minlength=len(texts))
        digests, indices = [], []
        normalized = separate(normalize_texts(content)).split(b"\n")[:-1]
        for index, words in enumerate(map(bytes.split, normalized)):
            if len(words) >= self.min_words:
                digests.append(hashlib.blake2b(b" ".join(words), digest_size=16).digest())
                indices.append(index)
        chosen = np.array(indices, np.int64)
        occurrences = np.zeros(len(chosen), OCCURRENCE)
        occurrences["document"] = numbers[owners[chosen]]
        for name, column in zip(("start", "end", "before", "is_last"), bounds[chosen].T, strict=True):
            occurrences[name] = column
        return Paragraphs(occurrences, np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2), documents)


def _spans(texts: list[str], *, of_blocks: bool) -> tuple[np.ndarray, np.ndarray, list[str]]:
    r"""Locates the paragraphs of texts.

    >>> _spans(["Title\n\nA\nB", "\nC\n"], of_blocks=False)[1].tolist()
    [[0, 7, 0, 0], [7, 9, 5, 0], [9, 10, 8, 1], [0, 3, 0, 1]]

    Returns:
        int64 [paragraphs], the index of the text of each; int64 [paragraphs, 4], its start, end, before and is_last, as
        in `OCCURRENCE`; and its content.
    """
    lines = [text.split("\n") for text in texts]
    counts = np.fromiter(map(len, lines), np.int64, len(lines))
    flat = [line for of_text in lines for line in of_text]
    owners = np.repeat(np.arange(len(texts)), counts)
    lengths = np.fromiter(map(len, flat), np.int64, len(flat))
    starts = np.cumsum(lengths + 1) - lengths - 1
    first_lines = np.cumsum(counts) - counts
    starts -= starts[first_lines][owners] if len(flat) else 0
    ends = starts + lengths - np.fromiter((line.endswith("\r") for line in flat), bool, len(flat))
    is_text = np.fromiter((bool(line) and not line.isspace() for line in flat), bool, len(flat))
    chosen = np.flatnonzero(is_text)
    is_first = np.ones(len(chosen), bool)  # the first line of a paragraph
    if of_blocks:
        is_first[1:] = (np.diff(chosen) > 1) | (np.diff(owners[chosen]) > 0)
    firsts, lasts = chosen[is_first], chosen[np.append(is_first[1:], True) if len(chosen) else is_first]
    owners, starts, ends = owners[firsts], starts[firsts], ends[lasts]
    content = (
        [
            texts[owner][start:end]
            for owner, start, end in zip(owners.tolist(), starts.tolist(), ends.tolist(), strict=True)
        ]
        if of_blocks
        else [flat[index] for index in firsts.tolist()]
    )
    is_new = np.diff(owners, prepend=-1) > 0
    is_last = np.append(is_new[1:], True) if len(owners) else is_new
    text_lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    starts = np.where(is_new, 0, starts)
    cut_ends = np.where(is_last, text_lengths[owners], np.append(starts[1:], 0)[: len(starts)])
    before = np.where(is_new, 0, np.concatenate([[0], ends[:-1]])[: len(starts)])
    return owners, np.stack([starts, cut_ends, before, is_last], axis=1).astype(np.int64), content


def decide(occurrences: np.ndarray, documents: np.ndarray, hits: np.ndarray, unit: int) -> Removals:
    """Decides what is removed from the documents of a unit: all occurrences of hits but the first in the corpus.

    Args:
        occurrences: `OCCURRENCE`, in order of documents, then places.
        documents: `DOCUMENT`, in order.
        hits: `HIT`, in any order, each paragraph once.
        unit: The number of the unit.

    Returns:
        A row for each document: with the rule ALL_PARAGRAPHS if all of its paragraphs are hit, else PARAGRAPHS and the
        passages to cut. The value is the share of the characters that are removed.
    """
    hit_of = np.full(int(occurrences["paragraph"].max(initial=0)) + 1, -1, np.int64)
    hit_of[hits["paragraph"]] = np.arange(len(hits))
    is_first = np.zeros(len(occurrences), bool)
    is_first[np.unique(occurrences["paragraph"], return_index=True)[1]] = True
    hit = hit_of[occurrences["paragraph"]]
    is_kept = is_first & (hits["kept_unit"][hit] == unit) if len(hits) else is_first
    removed = (hit >= 0) & ~is_kept
    return _removals(occurrences[removed], hits[hit[removed]], documents)


def _removals(occurrences: np.ndarray, hits: np.ndarray, documents: np.ndarray) -> Removals:
    """Returns the removals of these occurrences, given the hit of each, `HIT`."""
    if not len(occurrences):
        return Removals.empty()
    numbers = occurrences["document"]
    is_new = np.diff(numbers, prepend=-1) != 0
    starts, ends = occurrences["start"].astype(np.int64), occurrences["end"].astype(np.int64)
    is_apart = is_new | np.append(True, starts[1:] != ends[:-1])
    heads = np.flatnonzero(is_apart)  # of runs without text between them
    at_end = heads[occurrences["is_last"][np.append(heads[1:], len(numbers)) - 1]]
    starts[at_end] = occurrences["before"][at_end]
    kept = np.stack([hits["kept_unit"], hits["kept_document"].astype(np.int64)], axis=1)
    # A passage is a run of paragraphs that the same document keeps.
    first = np.flatnonzero(is_apart | np.append(True, (kept[1:] != kept[:-1]).any(axis=1)))
    passages = np.stack([starts[first], ends[np.append(first[1:], len(numbers)) - 1]], axis=1)
    copies = np.column_stack([kept[first], np.minimum.reduceat(hits["documents"].astype(np.int64), first)])
    of_document = np.append(np.flatnonzero(is_new[first]), len(first))
    document_firsts = np.flatnonzero(is_new)
    counts = np.diff(np.append(document_firsts, len(numbers)))
    removed_characters = np.add.reduceat(passages[:, 1] - passages[:, 0], of_document[:-1])
    rows = documents[np.searchsorted(documents["document"], numbers[document_firsts])]
    is_whole = counts == rows["paragraphs"]
    shares = np.where(is_whole, 1.0, removed_characters / rows["characters"])
    evidence: list[dict[str, Any]] = []
    for index, (begin, end) in enumerate(pairwise(of_document.tolist())):
        if is_whole[index]:
            unit, document, copied = copies[begin].tolist()
            evidence.append({"kept": [unit, document], "documents": copied, "paragraphs": int(counts[index])})
        else:
            evidence.append({PASSAGES: passages[begin:end].tolist(), "copies": copies[begin:end].tolist()})
    parts = []
    for rule, chosen in ((ALL_PARAGRAPHS, is_whole), (PARAGRAPHS, ~is_whole)):
        places = np.flatnonzero(chosen)
        selected = [evidence[place] for place in places.tolist()]
        parts.append(
            Removals.of_rule(rule, rows["document"][places].astype(np.int64), shares[places], selected)
        )
    return Removals.concat(parts)
