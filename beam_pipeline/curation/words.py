"""The words of texts, as spaCy's tokenizer for English divides them, for many texts at once.

spaCy decides about each piece between white space alone. So each distinct piece is tokenized once, and a text is looked
up piece by piece, which gives the same words.
"""

from __future__ import annotations

import sys
import unicodedata
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from beam_pipeline.curation.punctuation import PUNCTUATION
from beam_pipeline.support import extras

_PIECES_AT_ONCE = 10_000  # since each call of spaCy has a cost
_MARKS = frozenset(",;:!?)")
_MAX_PIECES = 1 << 18  # in the table, which then starts again: about 230 MB

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The stop words of Gopher (Rae et al. 2021, arXiv:2112.11446, appendix A1.1)."""

IS_SYMBOL, HAS_LETTER, IS_PUNCTUATION, ENDS_SENTENCE = 1, 2, 4, 8
"""Bits of `Words.flags`: all characters are punctuation (of `curation.punctuation`); some are letters; all are
punctuation by Unicode; the word is a single mark that ends a sentence."""


@dataclass(frozen=True)
class Words:
    """The words of several texts, one after another."""

    ids: np.ndarray
    """int64 [words]: equal words have equal numbers."""
    bounds: np.ndarray
    """int64 [texts + 1]: the words of text i are `bounds[i]` to `bounds[i + 1] - 1`."""
    lengths: np.ndarray
    """int64 [words], in characters."""
    flags: np.ndarray
    """uint8 [words], bits such as `IS_SYMBOL`."""
    stop_words: np.ndarray
    """uint8 [words]: the bit of the stop word that a word is, in the order of `STOP_WORDS`; else 0."""

    @cached_property
    def counts(self) -> np.ndarray:
        """int64 [texts], the number of words."""
        return np.diff(self.bounds)

    @cached_property
    def texts(self) -> np.ndarray:
        """int64 [words], the number of each word's text."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Adds up values of words for each text: int64 [texts]."""
        totals = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return totals[self.bounds[1:]] - totals[self.bounds[:-1]]


class _Numbers(dict):
    """Numbers keys in the order in which they are first looked up."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


class WordSplitter:
    """Divides texts into words. Loads spaCy when it is first used."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.__dict__.pop("_spacy", None)  # which keeps all words that it has seen, too
        self._piece_numbers = _Numbers()
        self._word_numbers = _Numbers()
        self._words = array("q")  # of all pieces, one after another
        self._starts = array("q", [0])  # of each piece's words
        self._lengths, self._flags, self._stop_words = array("q"), array("B"), array("B")  # of each word

    @cached_property
    def _spacy(self):
        extras.require("filters", "--filter")
        import spacy

        pipeline = spacy.blank("en")
        pipeline.add_pipe("sentencizer")
        pipeline.max_length = sys.maxsize  # the limit is for parsers, which need much memory
        return pipeline

    @cached_property
    def _sentence_ends(self) -> frozenset[str]:
        return frozenset(self._spacy.get_pipe("sentencizer").punct_chars)

    @cached_property
    def _exceptions(self) -> frozenset[str]:
        return frozenset(self._spacy.tokenizer.rules)

    def split(self, texts: list[str]) -> Words:
        """Returns the words of each text."""
        if len(self._piece_numbers) > _MAX_PIECES:
            self._reset()
        pieces = [text.split() for text in texts]
        counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
        lookup = map(self._piece_numbers.__getitem__, chain.from_iterable(pieces))
        numbers = np.fromiter(lookup, np.int64, int(counts.sum()))
        known = len(self._starts) - 1
        if len(self._piece_numbers) > known:
            pieces_to_add = list(self._piece_numbers)[known:]
            for begin in range(0, len(pieces_to_add), _PIECES_AT_ONCE):
                self._add_pieces(pieces_to_add[begin : begin + _PIECES_AT_ONCE])
        starts = np.array(self._starts)
        sizes = np.diff(starts)[numbers]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(total) + np.repeat(starts[numbers] - (ends - sizes), sizes)
        ids = np.array(self._words)[places]
        piece_bounds = np.concatenate([[0], np.cumsum(counts)])
        bounds = np.concatenate([[0], ends])[piece_bounds]
        lengths, flags, stop_words = (
            np.array(values)[ids] for values in (self._lengths, self._flags, self._stop_words)
        )
        return Words(ids, bounds, lengths, flags, stop_words)

    def _add_pieces(self, pieces: list[str]) -> None:
        simple = list(map(self._divide, pieces))
        others = iter(
            self._tokenize([piece for piece, words in zip(pieces, simple, strict=True) if not words])
        )
        for words in simple:
            for word in words or next(others):
                number = self._word_numbers[word]
                self._words.append(number)
                if number == len(self._lengths):
                    self._lengths.append(len(word))
                    self._flags.append(_flags(word) | ENDS_SENTENCE * (word in self._sentence_ends))
                    self._stop_words.append(1 << STOP_WORDS.index(word) if word in STOP_WORDS else 0)
            self._starts.append(len(self._words))

    def _divide(self, piece: str) -> tuple[str, ...]:
        """Returns the words of letters of ASCII with at most a mark at their end, as spaCy; of other pieces, none.

        spaCy takes 30 times as long for these. It has exceptions for some, such as "cannot" and "Mr.".
        """
        word, mark = (piece, "") if piece.isalpha() else (piece[:-1], piece[-1])
        if not (word.isascii() and word.isalpha()) or piece in self._exceptions or word in self._exceptions:
            return ()
        if not mark:
            return (word,)
        ends = mark in _MARKS or (mark == "." and len(word) > 1 and word[-1].islower())
        return (word, mark) if ends else ()

    def _tokenize(self, pieces: list[str]) -> list[list[str]]:
        """Returns the words of each piece by spaCy."""
        words: list[list[str]] = [[]]
        for token in self._spacy.tokenizer(" ".join(pieces)):
            words[-1].append(token.text)
            if token.whitespace_:
                words.append([])
        return words

    def count_sentences(self, lines: list[str]) -> np.ndarray:
        """Returns the number of sentences of each line by spaCy's sentencizer, int64 [lines].

        A sentence begins at the first word, and at each word that follows a mark that ends a sentence, and perhaps
        further punctuation.
        """
        words = self.split(lines)
        is_end = (words.flags & ENDS_SENTENCE) > 0
        begins = (words.flags & (ENDS_SENTENCE | IS_PUNCTUATION)) == 0
        # The number of ends before each word, and before the last word before it that is not punctuation.
        ends = np.concatenate([[0], np.cumsum(is_end)])
        places = np.flatnonzero(begins)
        before = ends[places]
        previous = np.concatenate([[0], before[:-1]])
        first = words.bounds[:-1][words.texts[places]]
        starts_sentence = np.zeros(len(is_end), bool)
        starts_sentence[places] = (before > np.maximum(previous, ends[first])) & (places > first)
        counts = words.sums(starts_sentence) + (words.counts > 0)
        # White space other than single spaces is a word to spaCy.
        for index, line in enumerate(lines):
            if len(line.split(" ")) != len(line.split()):
                counts[index] = sum(1 for _ in self._spacy(line).sents)
        return counts


def _flags(word: str) -> int:
    is_symbol = PUNCTUATION.issuperset(word)
    is_punctuation = all(unicodedata.category(character)[0] == "P" for character in word)
    return IS_SYMBOL * is_symbol | HAS_LETTER * any(map(str.isalpha, word)) | IS_PUNCTUATION * is_punctuation
