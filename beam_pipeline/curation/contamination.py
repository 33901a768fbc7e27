"""Finds the n-grams of benchmarks in documents, and decides which documents contain an item.

1. `find_matches` finds the n-grams in each document, by their hashes, and verifies each by its text.
2. The number of documents with each n-gram is counted over the whole corpus. An n-gram of many documents is common
   text, such as a license or a proverb, and no evidence. An item that consists mostly of such n-grams is public text.
3. `decide` determines the items of which a document has at least a share of the other n-grams, in each field.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from beam_pipeline.curation.ngram_index import NgramIndex
from beam_pipeline.curation.normalize import normalize_texts, normalize_words
from beam_pipeline.curation.removals import PASSAGES, Removals
from beam_pipeline.curation.shingles import ShingleSize, shingles_in_order
from beam_pipeline.curation.single_characters import separate, separate_word

RULE = "decontaminate"
"""The rule that removes documents that contain an item of a benchmark."""

MATCH = np.dtype([("document", "<i8"), ("ngram", "<i8"), ("start", "<i8"), ("end", "<i8")])
"""An n-gram in a document: the document's number, that of the n-gram, and its first character and the one after its
last."""

NO_MATCHES = np.empty(0, MATCH)
PUBLIC_SHARE = 0.5
"""An item is public text if more than this share of the n-grams of a field is common."""
SHARE_BINS = 10
"""The number of bins of the histogram of shares."""


def find_matches(texts: list[str], index: NgramIndex, *, with_places: bool) -> np.ndarray:
    """Finds the n-grams of an index in documents.

    Args:
        texts: The documents.
        index: The n-grams.
        with_places: Whether to determine where they are. Otherwise, start and end are 0.

    Returns:
        `MATCH` [matches], by document, n-gram and place. Each n-gram counts once in a document, or with places once
        at each place.
    """
    data = separate(normalize_texts(texts))
    candidates = _candidates(data, len(texts), index)
    if not len(candidates):
        return NO_MATCHES
    lines = data.split(b"\n")
    matches = []
    for document, start, end in _groups(candidates[:, 0]):
        words = lines[document].split()
        matched = _verified(words, candidates[start:end], index)
        if not matched:
            continue
        matched += _unsearched(words, matched, index)
        entries = np.zeros(len(matched), MATCH)
        entries["document"] = document
        entries["ngram"] = [number for number, _, _ in matched]
        if with_places:
            spans = _word_spans(texts[document])
            entries["start"] = [spans[first, 0] for _, first, _ in matched]
            entries["end"] = [spans[first + count - 1, 1] for _, first, count in matched]
        matches.append(np.unique(entries))
    return np.concatenate([NO_MATCHES, *matches])


def _candidates(data: bytes, texts: int, index: NgramIndex) -> np.ndarray:
    """Finds the n-grams whose hashes are in the index.

    Returns:
        int64 [candidates, 3], by document: the document, the first word, and the place of the hash in the table of
        n-grams of n words, or -1 if it is the hash of the beginning of a shorter field.
    """
    parts = []
    n, min_words = index.n.tolist()
    for size, table in ((n, index.long_table), (min_words, index.short_table)):
        if not len(table.hashes):
            continue
        hashes, counts = shingles_in_order(data, texts, ShingleSize(size))
        indices, places = table.search(hashes)
        starts = np.concatenate([[0], np.cumsum(counts)])
        documents = np.searchsorted(starts, indices, side="right") - 1
        if table is index.short_table:
            places = np.full(len(indices), -1)
        parts.append(np.stack([documents, indices - starts[documents], places], axis=1))
    candidates = np.concatenate([np.empty((0, 3), np.int64), *parts])
    return candidates[np.argsort(candidates[:, 0], kind="stable")]


def _verified(words: list[bytes], candidates: np.ndarray, index: NgramIndex) -> list[tuple[int, int, int]]:
    """Returns (n-gram, first word, number of words) of the candidates whose text is that of the n-gram."""
    n = int(index.n[0])
    matched = []
    for _, first, place in candidates.tolist():
        if place >= 0:
            number = index.number_of(b" ".join(words[first : first + n]), place)
            if number is not None:
                matched.append((number, first, n))
            continue
        for size in index.short_sizes:
            number = index.short_numbers.get(b" ".join(words[first : first + size]))
            if number is not None and first + size <= len(words):
                matched.append((number, first, size))
    return matched


def _unsearched(
    words: list[bytes], matched: list[tuple[int, int, int]], index: NgramIndex
) -> list[tuple[int, int, int]]:
    """Returns where the document has the short fields of those items of which it has another n-gram."""
    if not index.unsearched_of_item:
        return []
    fields = index.field_ngrams.shape[1]
    owners = index.owners_of(np.unique([number for number, _, _ in matched]))
    numbers = {
        number
        for item in np.unique(owners // fields).tolist()
        for number in index.unsearched_of_item.get(item, ())
    }
    text = b" " + b" ".join(words) + b" "
    places = []
    for number in sorted(numbers):
        ngram = index.text_of(number)
        begin = text.find(b" " + ngram + b" ")
        if begin >= 0:
            places.append((number, text.count(b" ", 1, begin + 1), ngram.count(b" ") + 1))
    return places


def _word_spans(text: str) -> np.ndarray:
    """Returns int64 [words, 2]: where each word is in a text, which may be divided by `separate`."""
    spans: list[tuple[int, int]] = []
    normalized = normalize_words(text)
    for word, (start, end) in zip(normalized.words, normalized.spans.tolist(), strict=True):
        parts = [word] if word.isascii() else separate_word(word)
        if len(word) != end - start:  # NFKC has changed the number of characters
            spans += [(start, end)] * len(parts)
            continue
        for part in parts:
            spans.append((start, start + len(part)))
            start += len(part)
    return np.array(spans, np.int64).reshape(-1, 2)


def _groups(keys: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yields each distinct key of an ascending array, with the begin and end of its elements."""
    bounds = np.flatnonzero(np.diff(keys, prepend=-1, append=-1)).tolist() if len(keys) else [0]
    for start, end in pairwise(bounds):
        yield int(keys[start]), start, end


def documents_with(matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts the documents with each n-gram.

    Returns:
        int64 [different n-grams]: their numbers, ascending, and the number of documents with each.
    """
    is_new = (np.diff(matches["document"], prepend=-1) != 0) | (np.diff(matches["ngram"], prepend=-1) != 0)
    return np.unique(matches["ngram"][is_new], return_counts=True)


@dataclass(frozen=True, eq=False)
class Findings:
    """What benchmarks and documents have in common, counted over documents."""

    items: np.ndarray
    """int64: the items that documents contain, ascending."""
    item_documents: np.ndarray
    """int64: the number of documents with each of these."""
    shares: np.ndarray
    """int64 [benchmarks, SHARE_BINS]: the number of documents by the largest share of an item that they have. The last
    bin includes whole items."""
    documents: np.ndarray
    """int64 [benchmarks]: the number of documents that contain an item of each."""

    @classmethod
    def none(cls, benchmarks: int = 0) -> Findings:
        empty = np.empty(0, np.int64)
        return cls(empty, empty, np.zeros((benchmarks, SHARE_BINS), np.int64), np.zeros(benchmarks, np.int64))

    def __add__(self, other: Findings) -> Findings:
        if not len(self.documents) or not len(other.documents):
            return self if len(self.documents) else other
        items, places = np.unique(np.concatenate([self.items, other.items]), return_inverse=True)
        counts = np.zeros(len(items), np.int64)
        np.add.at(counts, places, np.concatenate([self.item_documents, other.item_documents]))
        return Findings(items, counts, self.shares + other.shares, self.documents + other.documents)


@dataclass(frozen=True, eq=False)
class Decisions:
    """What is decided about the documents of a unit."""

    removals: Removals
    """The documents that contain an item."""
    findings: Findings
    """What was found in them."""


class Decider:
    """Decides about documents, given the n-grams that are common in the corpus."""

    def __init__(
        self, index: NgramIndex, common: np.ndarray, *, min_share: float, cuts_passages: bool = False
    ):
        """
        Args:
            index: The n-grams.
            common: int64: the numbers of the common ones, ascending.
            min_share: The smallest share of an item's n-grams that counts. With 0, a single one does.
            cuts_passages: Whether only the matching passages are removed from a document.
        """
        self._index = index
        self._min_share = min_share
        self._cuts_passages = cuts_passages
        self._is_common = np.zeros(len(index), bool)
        # Short fields are looked for only beside other evidence, so it does not matter how common they are.
        self._is_common[common[common < index.short[1]]] = True
        fields = index.field_ngrams
        counts = np.bincount(index.owners_of(np.flatnonzero(self._is_common)), minlength=fields.size)
        self._evidence = fields - counts.reshape(fields.shape)
        self.is_public = index.checkable & (counts.reshape(fields.shape) > PUBLIC_SHARE * fields).any(axis=1)
        """bool [items]: whether the item consists of common n-grams."""
        self._benchmarks = index.benchmark_of_items()

    def decide(self, matches: np.ndarray) -> Decisions:
        """Decides about the documents of a unit.

        Args:
            matches: `MATCH`, as from `find_matches`.
        """
        index = self._index
        documents, values, evidence, items = [], [], [], []
        totals = Findings.none(len(index.benchmarks))
        for document, start, end in _groups(matches["document"]):
            of_document = matches[start:end]
            numbers = np.unique(of_document["ngram"])
            matched_items, shares = self._shares(numbers[~self._is_common[numbers]])
            if not len(matched_items):
                continue
            largest = np.zeros(len(index.benchmarks))
            np.maximum.at(largest, self._benchmarks[matched_items], shares)
            in_any = np.flatnonzero(largest)
            totals.shares[in_any, np.minimum(largest[in_any] * SHARE_BINS, SHARE_BINS - 1).astype(int)] += 1
            contained = matched_items[shares >= self._min_share]
            if not len(contained):
                continue
            totals.documents[np.unique(self._benchmarks[contained])] += 1
            items.append(contained)
            documents.append(document)
            values.append(float(shares.max()))
            reason = self._evidence_of(int(matched_items[np.argmax(shares)]), numbers, len(contained))
            if self._cuts_passages:
                reason[PASSAGES] = self._passages(of_document, contained)
            evidence.append(reason)
        counted = np.unique(np.concatenate([np.empty(0, np.int64), *items]), return_counts=True)
        removals = Removals.of_rule(RULE, np.array(documents, np.int64), values, evidence)
        return Decisions(removals, Findings(*counted, totals.shares, totals.documents))

    def _shares(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the items, ascending, with one of these n-grams in each field, and the smallest share of a field.

        Public items are left out.
        """
        fields = self._index.field_ngrams.shape[1]
        owners, counts = np.unique(self._index.owners_of(numbers), return_counts=True)
        items, first, matched_fields = np.unique(owners // fields, return_index=True, return_counts=True)
        share = counts / self._evidence.reshape(-1)[owners]
        smallest = np.minimum.reduceat(share, first) if len(items) else share
        kept = (matched_fields == fields) & ~self.is_public[items]
        return items[kept], smallest[kept]

    def _evidence_of(self, item: int, numbers: np.ndarray, items: int) -> dict[str, Any]:
        """Returns the evidence: the item with the largest share, its first n-gram in the document, and the number of
        items that the document contains."""
        index = self._index
        is_evidence = ~self._is_common[numbers] & (numbers < index.short[1])
        own = self._of_items(numbers[is_evidence], np.array([item]))
        benchmark, number = index.place_of(item)
        ngram = own[np.argmin(index.spans[own, 0])]
        return {
            "benchmark": index.benchmarks[benchmark],
            "item": number,
            "ngram": index.text_of(ngram).decode(),
            "items": items,
        }

    def _passages(self, matches: np.ndarray, items: np.ndarray) -> list[list[int]]:
        """Returns the passages of a document with n-grams of these items. Matches that overlap are one passage."""
        own = self._of_items(np.unique(matches["ngram"]), items)
        chosen = np.sort(matches[np.isin(matches["ngram"], own)], order=["start", "end"])
        passages: list[list[int]] = []
        for start, end in zip(chosen["start"].tolist(), chosen["end"].tolist(), strict=True):
            if passages and start <= passages[-1][1]:
                passages[-1][1] = max(passages[-1][1], end)
            else:
                passages.append([start, end])
        return passages

    def _of_items(self, ngrams: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns those n-grams that one of these items has."""
        index = self._index
        counts = index.owner_starts[ngrams + 1] - index.owner_starts[ngrams]
        owned = np.isin(index.owners_of(ngrams) // index.field_ngrams.shape[1], items)
        return np.unique(np.repeat(ngrams, counts)[owned])


def cut(text: str, passages: list[list[int]]) -> str:
    """Returns a text without these passages: [first character, the one after the last], ascending.

    >>> cut("What is 6 × 7? It is 42.", [[0, 13]])
    '? It is 42.'
    """
    bounds = [0, *(place for passage in passages for place in passage), len(text)]
    return "".join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
