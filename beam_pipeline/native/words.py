"""The compiled tokenization of words (words.c): Unigram, BPE and WordPiece models, called by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np

from beam_pipeline.native.states import States, each, require
from beam_pipeline.support.locks import ForkableLock
from beam_pipeline.support.texts import Texts

_BLOCKS = 0x1100  # BLOCKS in words.h
_BYTES_PER_THREAD = 1 << 16  # fewer are not worth a thread


Flat = tuple[np.ndarray, np.ndarray]
"""uint32 [tokens]: the ids of all texts, and int64 [texts]: the number of ids of each."""


class Kind(IntEnum):
    """The kinds of models."""

    UNIGRAM, BPE, BYTE_BPE, WORDPIECE = range(4)


class Cut(IntEnum):
    """How texts are cut to words. See `end_of_word` and `add_split_words` in words.c."""

    AT_MARKS, BETWEEN_TOKENS, UNITS, SPLITS = range(4)


@dataclass(frozen=True)
class Level:
    """A pre-tokenizer that splits the pieces of the one before."""

    first: int
    """The number of the first of its alternatives."""
    count: int
    """The number of its alternatives."""
    keeps_matches: bool
    """Whether what matches them is kept."""
    keeps_gaps: bool
    """Whether the text between the matches is kept."""
    by_bytes: bool
    """Whether its classes are those of bytes, not of characters."""


@dataclass(frozen=True)
class Splitter:
    """The levels of a pre-tokenizer, whose patterns were compiled by `tokenization.patterns`."""

    levels: Sequence[Level]
    alternatives: Sequence[tuple[int, int]]
    instructions: Sequence[tuple[int, int, int, int]]
    bytes: np.ndarray
    """uint32 [256]: the bits of the classes of each byte."""
    classes_of: Callable[[int], np.ndarray]
    """Returns the bits of the classes of each character of a block of 256, given its number: uint32 [256]."""


class WordModel:
    """A model in the memory of the compiled library.

    Add pieces to a Unigram or a WordPiece model, and merges to a BPE model. A BPE model with pieces does not merge a
    word that is one of them. Where a text is cut at marks, the mark is a space in all tokens.

    Args:
        library: See `rows_library`.
        kind: The kind of the model.
        cut: How texts are cut to words.
        has_prefix: Whether a mark is put before a text that begins with none.
        unknown_id: The id of the unknown token, if there is one.
        unknown_score: The score of a character that is no piece.
        fuses_unknown: Whether neighbouring unknown characters become one token.
        most_chars: The number of characters of the longest word that WordPiece encodes.
        byte_ids: The id of the token for each byte of unknown characters, or -1.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: Kind,
        cut: Cut,
        *,
        has_prefix: bool = False,
        unknown_id: int | None = None,
        unknown_score: float = 0.0,
        fuses_unknown: bool = False,
        most_chars: int = 0,
        byte_ids: Sequence[int] = (-1,) * 256,
    ):
        self._library = library
        self._splitter: Splitter | None = None
        self._known_blocks: set[int] = set()
        self._blocks_lock = ForkableLock()
        ids_of_bytes = np.array(byte_ids, np.int64)
        self._model = library.tokenmill_words_model(
            kind,
            cut,
            has_prefix,
            fuses_unknown,
            -1 if unknown_id is None else unknown_id,
            unknown_score,
            most_chars,
            ids_of_bytes.ctypes.data,
        )
        require(self._model)
        self._states = States(library, self._model)

    def __del__(self):
        self._library.tokenmill_words_free_model(getattr(self, "_model", None))

    def add_pieces(self, pieces: Mapping[bytes, tuple[int, float]]) -> None:
        """Adds pieces, with the id and the score of each."""
        ordered = sorted(piece for piece in pieces if piece)
        ends = np.cumsum(np.fromiter(map(len, ordered), np.int64, len(ordered)))
        ids = np.fromiter((pieces[piece][0] for piece in ordered), np.uint32, len(ordered))
        scores = np.fromiter((pieces[piece][1] for piece in ordered), np.float64, len(ordered))
        arrays = (array.ctypes.data for array in (ends, ids, scores))
        require(
            self._library.tokenmill_words_add_pieces(self._model, b"".join(ordered), *arrays, len(ordered))
        )

    def add_merges(
        self, symbols: Mapping[int, int], merges: np.ndarray, before_marks: Sequence[str] = ()
    ) -> None:
        """Adds symbols and merges.

        Args:
            symbols: The id of each character, by its code point, or of each byte.
            merges: uint32 [merges, 3]: the ids of left, right and product, in the order in which they are applied.
            before_marks: The characters that tokens have before marks. A text is cut before a mark after any other.
        """
        codes = np.fromiter(symbols.keys(), np.uint32, len(symbols))
        ids = np.fromiter(symbols.values(), np.uint32, len(symbols))
        before = np.array(sorted(map(ord, before_marks)), np.uint32)
        merges = np.ascontiguousarray(merges, np.uint32)
        require(
            self._library.tokenmill_words_add_merges(
                self._model,
                *(codes.ctypes.data, ids.ctypes.data, len(codes)),
                *(merges.ctypes.data, len(merges)),
                *(before.ctypes.data, len(before)),
            )
        )

    def add_last_symbols(self, symbols: Mapping[int, int]) -> None:
        """Adds the ids that characters, by their code points, or bytes have at the end of a word."""
        codes = np.fromiter(symbols.keys(), np.uint32, len(symbols))
        ids = np.fromiter(symbols.values(), np.uint32, len(symbols))
        arguments = (codes.ctypes.data, ids.ctypes.data, len(symbols))
        require(self._library.tokenmill_words_add_last_symbols(self._model, *arguments))

    def add_splitter(self, splitter: Splitter) -> None:
        """Makes the model split texts with these levels."""
        levels = np.array(
            [
                (level.first, level.count, level.keeps_matches, level.keeps_gaps, level.by_bytes)
                for level in splitter.levels
            ],
            np.int32,
        )
        alternatives = np.array(splitter.alternatives, np.int64).astype(np.uint32)
        instructions = np.array(splitter.instructions, np.int64).astype(np.uint32)
        classes = np.ascontiguousarray(splitter.bytes, np.uint32)
        require(
            self._library.tokenmill_words_add_splitter(
                self._model,
                *(levels.ctypes.data, len(levels)),
                *(alternatives.ctypes.data, len(alternatives)),
                *(instructions.ctypes.data, len(instructions)),
                classes.ctypes.data,
            )
        )
        self._splitter = splitter
        self._add_block(0)

    def encode(self, texts: Texts, threads: int = 1) -> Flat:
        """Encodes texts with up to this many threads, which share a cache of words. Python's lock is released."""
        ends = np.cumsum(texts.sizes)
        size = int(ends[-1]) if len(ends) else 0
        shares = min(threads, 1 + size // _BYTES_PER_THREAD)
        bounds = np.searchsorted(ends, size * np.arange(1, shares) // shares).tolist()
        spans = list(map(slice, [0, *bounds], [*bounds, len(texts)]))
        lengths = np.empty(len(texts), np.int64)
        with self._states.lend(shares, size) as states:
            counts = each(partial(self._encode, texts, lengths), states, spans)
            ids = np.empty(sum(counts), np.uint32)
            each(self._copy_ids, states, np.split(ids, np.cumsum(counts[:-1])))
        return ids, lengths

    def _encode(self, texts: Texts, lengths: np.ndarray, state: int, span: slice) -> int:
        """Encodes some of the texts, and sets their lengths. Returns the number of ids."""
        lengths = lengths[span]
        places = (texts.data, texts.starts[span], texts.ends[span])
        addresses = [array.ctypes.data for array in places]
        missing = np.zeros(_BLOCKS + 1, np.uint8)
        done = 0
        while done < len(lengths):
            done = self._library.tokenmill_words_encode(
                state, *addresses, done, len(lengths), lengths.ctypes.data, missing.ctypes.data
            )
            require(done >= 0)
            for block in np.flatnonzero(missing[:-1]).tolist():
                self._add_block(block)
            missing[:] = 0
        return int(lengths.sum())

    def _copy_ids(self, state: int, ids: np.ndarray) -> None:
        self._library.tokenmill_words_copy_ids(state, ids.ctypes.data, len(ids))

    def _add_block(self, block: int) -> None:
        classes = np.ascontiguousarray(self._splitter.classes_of(block), np.uint32)
        with self._blocks_lock.held:
            if block not in self._known_blocks:
                require(self._library.tokenmill_words_set_block(self._model, block, classes.ctypes.data))
                self._known_blocks.add(block)
