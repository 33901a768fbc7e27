"""Byte-level Unigram models for the library tokie, which knows no other pre-tokenizer for them than Metaspace.

`tokenizers` splits a text into units (`byte_units`) and writes each in the byte alphabet. tokie gets the bytes as
Latin-1 characters, and begins a unit at each mark `▁`, which replaces spaces. So the space before a word is the mark, a
line break at the beginning of a unit gets a mark of its own, and the spaces of a run are `ÿ`, which stands for a byte
that is never in UTF-8:

    text:     x   ␣=   ␣1:   ⏎␣␣␣   ␣y
    tokie:    x   ▁=   ▁1:   ▁⏎ÿÿÿ  ▁y

A piece of white space is spelled differently at the beginning of a unit and within it. Therefore tokie's vocabulary has
all spellings, with equal scores, and with ids after those of the vocabulary. A mark is no token of its own beside such
a spelling, since it would add a negative score. So both libraries add the same numbers in the same order.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.engines.unigram_model import BYTE_PIECE
from beam_pipeline.tokenization.byte_level import byte_characters
from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent, dump_tokenizer

_MARK, _SPACE = "▁", "\xff"
_WHITE = re.compile(r"[ \n]{2,}|\n")


class ByteUnigramModel:
    """A byte-level Unigram model for tokie.

    Args:
        model: The model of a `tokenizer.json`.

    Attributes:
        byte_pieces: Pieces that tokie cannot find in text.

    Raises:
        UnsupportedComponent: If tokie cannot give the same ids.
    """

    def __init__(self, model: Mapping):
        pieces = [piece for piece, _ in model["vocab"]]
        last_number = {piece: number for number, piece in enumerate(pieces)}
        bytes_of = {char: chr(byte) for byte, char in byte_characters().items()}
        if model["unk_id"] is None:
            raise UnsupportedComponent("tokie needs an unknown token")
        if model["byte_fallback"] or not bytes_of.keys() <= last_number.keys():
            raise UnsupportedComponent("a byte-level Unigram model without a piece for each byte")
        if any(score >= 0 for _, score in model["vocab"]):
            raise UnsupportedComponent("a byte-level Unigram model with scores that are not negative")
        self._model = model
        self.byte_pieces = frozenset(filter(BYTE_PIECE.fullmatch, pieces))
        self._names: list[str] = []
        self._added: list[tuple[str, int]] = []  # other spellings, and the number of the piece
        for number, piece in enumerate(pieces):
            spellings: list[str] = []
            # Of equal pieces the last one counts.
            if (
                last_number[piece] == number
                and piece not in self.byte_pieces
                and bytes_of.keys() >= set(piece)
            ):
                spellings = list(_spellings("".join(map(bytes_of.__getitem__, piece))))
            self._names.append(spellings[0] if spellings else secrets.token_hex(16))
            self._added += [(spelling, number) for spelling in spellings[1:]]
        self._numbers = np.array([*range(len(pieces)), *(number for _, number in self._added)], np.uint32)

    def to_json(self, tokenizer: Mapping) -> str:
        """Returns the `tokenizer.json` of a tokenizer with this model, for tokie."""
        scores = [score for _, score in self._model["vocab"]]
        vocab = list(zip(self._names, scores, strict=True))
        vocab += [(spelling, scores[number]) for spelling, number in self._added]
        return dump_tokenizer({**tokenizer, "model": {**self._model, "vocab": vocab}})

    def spell(self, texts: Sequence[str]) -> list[str]:
        """Returns the texts as tokie gets them."""
        return list(map(_spell, texts))

    def restore(self, ids: np.ndarray, lengths: np.ndarray) -> FlatIds:
        """Replaces the ids of other spellings by those of their pieces.

        Args:
            ids: tokie's ids, uint32 [tokens].
            lengths: The number of tokens in each text, int64 [texts].
        """
        return self._numbers[ids], lengths


def _spellings(piece: str) -> Iterator[str]:
    """Yields the spellings of a piece, given as Latin-1 characters; none if it is in no unit of valid UTF-8.

    >>> [list(_spellings(piece)) for piece in ("a", " a", "\\na", " ", "\\n ", "a b")]
    [['a'], ['▁a'], ['▁\\na'], ['▁', '▁ÿ', 'ÿ'], ['▁\\nÿ', '\\nÿ'], []]
    """
    if _SPACE in piece:
        return
    if piece.strip(" \n"):
        if not {" ", "\n"} & set(piece[1:]):
            yield piece.replace(" ", _MARK).replace("\n", _MARK + "\n")
        return
    if piece == " ":
        yield _MARK
    within = piece.replace(" ", _SPACE)
    yield _MARK + within
    yield within


def _spell(text: str) -> str:
    if not text.isascii():
        text = text.encode().decode("latin-1")
    # Most short texts have neither, which `in` determines faster than the pattern.
    return _WHITE.sub(_spell_white, text) if "\n" in text or "  " in text else text


def _spell_white(match: re.Match[str]) -> str:
    """Spells a run of white space, or a line break. Its last character belongs to the word that follows, if any."""
    white = match.group()
    run, last = (white, "") if match.end() == len(match.string) else (white[:-1], white[-1])
    # tokie replaces the space by the mark.
    return (" " + run.replace(" ", _SPACE) if run else "") + (" \n" if last == "\n" else last)
