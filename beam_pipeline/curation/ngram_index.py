"""The index of the n-grams of benchmarks, which a run builds once and its workers search.

Each field of an item, such as its question, has a set of n-grams: all sequences of n words of its normalized text. A
field with fewer words has a single one, the whole text, unless it has less than `min_words`; then it is too short to
be searched for. A short field, such as the answer "42", is still looked for in documents that contain another field
of the same item.

An index maps the hashes of n-grams to their texts, by which matches are verified, and n-grams to the fields that
contain them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from beam_pipeline.curation.normalize import normalize_texts
from beam_pipeline.curation.shingles import ShingleSize, shingles_in_order
from beam_pipeline.curation.single_characters import separate

_TEXTS_AT_ONCE = 4096
_BITS_PER_HASH = 32  # so that one in 32 hashes of other n-grams passes the bitmap


@dataclass(frozen=True)
class HashTable:
    """The hashes of one size of n-grams."""

    hashes: np.ndarray
    """uint64 [hashes], ascending."""

    @cached_property
    def _bits(self) -> int:
        return max(16, (len(self.hashes) * _BITS_PER_HASH - 1).bit_length())

    @cached_property
    def _bitmap(self) -> np.ndarray:
        """Whether some hash begins with these bits, so that most others need no search: bool [1 << bits]."""
        bitmap = np.zeros(1 << self._bits, bool)
        bitmap[self._prefix(self.hashes)] = True
        return bitmap

    def _prefix(self, hashes: np.ndarray) -> np.ndarray:
        return hashes >> np.uint64(64 - self._bits)

    def search(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Searches for `hashes`, uint64, in a table that is not empty.

        Returns:
            int64: the indices of those that are in the table, and the first place of each there.
        """
        likely = np.flatnonzero(self._bitmap[self._prefix(hashes)])
        places = np.minimum(np.searchsorted(self.hashes, hashes[likely]), len(self.hashes) - 1)
        is_equal = self.hashes[places] == hashes[likely]
        return likely[is_equal], places[is_equal]


@dataclass(frozen=True, eq=False)
class NgramIndex:
    """The n-grams of benchmarks.

    N-grams have numbers: first those of n words, in the order of their hashes; then those of shorter fields that are
    searched for; then those of fields that are too short for that.
    """

    n: np.ndarray
    """int64 [2]: the number of words of an n-gram, and of the shortest field that is searched for."""
    names: np.ndarray
    """uint8: a JSON list of the names of the benchmarks."""
    item_counts: np.ndarray
    """int64 [benchmarks]: the number of items of each. The items of all benchmarks are numbered consecutively."""
    checkable: np.ndarray
    """bool [items]: whether some field of the item has enough words, and none has none."""
    field_ngrams: np.ndarray
    """int64 [items, fields]: the number of different n-grams of each field; 0 if the item is not checkable."""
    hashes: np.ndarray
    """uint64 [n-grams of n words], ascending."""
    short: np.ndarray
    """int64 [2]: the numbers of the first n-gram of a shorter field, and of the first that is not searched for."""
    texts: np.ndarray
    """uint8: the normalized texts of all fields, in which one space separates two words, and a line feed texts."""
    spans: np.ndarray
    """int64 [n-grams, 2]: the first byte of each n-gram in `texts`, and the one after the last."""
    owner_starts: np.ndarray
    """int64 [n-grams + 1]: the first of the owners of each n-gram in `owners`, and the end of the last."""
    owners: np.ndarray
    """int64 [owners]: the fields (item · fields + field) with each n-gram, ascending."""

    def to_bytes(self) -> bytes:
        """Returns equal bytes for equal benchmarks and options."""
        file = io.BytesIO()
        np.savez(file, **{member.name: getattr(self, member.name) for member in fields(self)})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> NgramIndex:
        """Inverts `to_bytes`."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return cls(**dict(arrays))

    def __len__(self) -> int:
        """Returns the number of n-grams."""
        return len(self.spans)

    @cached_property
    def benchmarks(self) -> list[str]:
        """The names of the benchmarks."""
        return json.loads(self.names.tobytes())

    @cached_property
    def _first_items(self) -> np.ndarray:
        return np.cumsum(self.item_counts) - self.item_counts

    def place_of(self, item: int) -> tuple[int, int]:
        """Returns the benchmark of an item, and its number there."""
        benchmark = int(np.searchsorted(self._first_items, item, side="right")) - 1
        return benchmark, item - int(self._first_items[benchmark])

    def benchmark_of_items(self) -> np.ndarray:
        """Returns the benchmark of each item, int64 [items]."""
        return np.repeat(np.arange(len(self.item_counts)), self.item_counts)

    def text_of(self, ngram: int) -> bytes:
        """Returns the words of an n-gram, with one space between two."""
        start, end = self.spans[ngram].tolist()
        return self._text_bytes[start:end]

    @cached_property
    def _text_bytes(self) -> bytes:
        return self.texts.tobytes()

    def owners_of(self, ngrams: np.ndarray) -> np.ndarray:
        """Returns the fields that have these n-grams, int64, once for each n-gram."""
        starts, ends = self.owner_starts[ngrams], self.owner_starts[ngrams + 1]
        counts = ends - starts
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.owners[np.repeat(starts, counts) + offsets]

    @cached_property
    def long_table(self) -> HashTable:
        """The hashes of the n-grams of n words."""
        return HashTable(self.hashes)

    def number_of(self, text: bytes, first: int) -> int | None:
        """Returns the number of the n-gram of n words with this text, or None if it is in no benchmark.

        Args:
            text: The text.
            first: The first number with the hash of this text.
        """
        ngram_hash = self.hashes[first]
        for number in range(first, len(self.hashes)):
            if self.hashes[number] != ngram_hash:
                break
            if self.text_of(number) == text:
                return number
        return None

    @cached_property
    def short_numbers(self) -> dict[bytes, int]:
        """The numbers of the n-grams of shorter fields that are searched for, by their texts."""
        return {self.text_of(number): number for number in range(*self.short.tolist())}

    @cached_property
    def short_sizes(self) -> list[int]:
        """The numbers of words that these have, ascending."""
        return sorted({text.count(b" ") + 1 for text in self.short_numbers})

    @cached_property
    def short_table(self) -> HashTable:
        """The hashes of the first `min_words` words of these."""
        texts = [text + b"\n" for text in self.short_numbers]
        starts = [b" ".join(text.split()[: int(self.n[1])]) + b"\n" for text in texts]
        return HashTable(np.unique(_hashes(b"".join(starts), len(starts), int(self.n[1]))[0]))

    @cached_property
    def unsearched_of_item(self) -> dict[int, list[int]]:
        """The numbers of the n-grams that are too short to be searched for, by item."""
        by_item: dict[int, list[int]] = {}
        for number in range(int(self.short[1]), len(self)):
            for owner in self.owners_of(np.array([number])).tolist():
                by_item.setdefault(owner // self.field_ngrams.shape[1], []).append(number)
        return by_item


def build_index(
    names: Sequence[str], benchmarks: Sequence[Sequence[tuple[str, ...]]], *, n: int, min_words: int
) -> NgramIndex:
    """Builds the index of benchmarks.

    Args:
        names: The name of each benchmark.
        benchmarks: The items of each, as the texts of their fields. All items have the same number of fields.
        n: The number of words of an n-gram.
        min_words: The smallest number of words of a field that is searched for, at most n.
    """
    items = [texts for benchmark in benchmarks for texts in benchmark]
    width = len(items[0])
    lines = _normalize([text for texts in items for text in texts])
    words = np.array([line.count(b" ") + 1 if line else 0 for line in lines], np.int64)
    by_item = words.reshape(-1, width)
    checkable = (by_item.max(axis=1) >= min_words) & (by_item.min(axis=1) > 0)
    used = np.repeat(checkable, width)
    data = b"".join(line + b"\n" for line in lines)

    hashes, spans, owners = _long_ngrams(data, np.flatnonzero(used & (words >= n)), words, n)
    hashes, numbers, firsts = _distinct(data, hashes, spans)
    pairs = [np.stack([numbers, owners], axis=1)]
    all_spans = [spans[firsts]]
    total = len(firsts)
    bounds = []
    line_ends = np.cumsum([len(line) + 1 for line in lines]) - 1
    for is_kind in (words >= min_words) & (words < n), words < min_words:
        bounds.append(total)
        by_text: dict[bytes, int] = {}
        for field in np.flatnonzero(used & is_kind).tolist():
            number = by_text.setdefault(lines[field], total)
            if number == total:
                all_spans.append(np.array([[line_ends[field] - len(lines[field]), line_ends[field]]]))
                total += 1
            pairs.append(np.array([[number, field]]))
    owner_pairs = np.unique(np.concatenate(pairs).reshape(-1, 2), axis=0)
    field_ngrams = np.bincount(owner_pairs[:, 1], minlength=len(lines)).reshape(-1, width)
    return NgramIndex(
        n=np.array([n, min_words], np.int64),
        names=np.frombuffer(json.dumps(list(names)).encode(), np.uint8),
        item_counts=np.array([len(benchmark) for benchmark in benchmarks], np.int64),
        checkable=checkable,
        field_ngrams=field_ngrams.astype(np.int64),
        hashes=hashes,
        short=np.array(bounds, np.int64),
        texts=np.frombuffer(data, np.uint8),
        spans=np.concatenate(all_spans).astype(np.int64).reshape(-1, 2),
        owner_starts=np.searchsorted(owner_pairs[:, 0], np.arange(total + 1)).astype(np.int64),
        owners=owner_pairs[:, 1].astype(np.int64),
    )


def _normalize(texts: list[str]) -> list[bytes]:
    """Returns the normalized texts, in which one space separates two words."""
    lines: list[bytes] = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        data = separate(normalize_texts(texts[start : start + _TEXTS_AT_ONCE]))
        lines += [b" ".join(line.split()) for line in data.split(b"\n")[:-1]]
    return lines


def _hashes(data: bytes, texts: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return shingles_in_order(data, texts, ShingleSize(size))


def _long_ngrams(
    data: bytes, chosen: np.ndarray, words: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all n-grams of the chosen fields: uint64 hashes, int64 spans [n-grams, 2] in `data`, and int64 fields."""
    codes = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((codes == ord(" ")) | (codes == ord("\n")))  # one for each word, or empty line
    hashes, counts = _hashes(data, len(words), n)
    first_hashes = np.cumsum(counts) - counts
    slots = np.maximum(words, 1)
    first_words = np.cumsum(slots) - slots
    starts = np.concatenate([[0], ends[:-1] + 1])
    per_field = counts[chosen]
    offsets = np.arange(per_field.sum()) - np.repeat(np.cumsum(per_field) - per_field, per_field)
    first = np.repeat(first_words[chosen], per_field) + offsets
    spans = np.stack([starts[first], ends[first + n - 1]], axis=1)
    return hashes[np.repeat(first_hashes[chosen], per_field) + offsets], spans, np.repeat(chosen, per_field)


def _distinct(
    data: bytes, hashes: np.ndarray, spans: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers the different n-grams, in the order of their hashes, those of equal hashes in the order of the input.

    Returns:
        The hash of each number, the number of each n-gram, and the index of the first n-gram of each number.
    """
    order = np.argsort(hashes, kind="stable")
    numbers = np.empty(len(hashes), np.int64)
    firsts: list[int] = []
    by_text: dict[bytes, int] = {}
    previous = None
    for index, value in zip(order.tolist(), hashes[order].tolist(), strict=True):
        if value != previous:
            by_text, previous = {}, value
        start, end = spans[index]
        text = data[start:end]
        if text not in by_text:
            by_text[text] = len(firsts)
            firsts.append(index)
        numbers[index] = by_text[text]
    first_of_number = np.array(firsts, np.int64)
    return hashes[first_of_number], numbers, first_of_number
