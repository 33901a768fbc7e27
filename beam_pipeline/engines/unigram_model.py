"""Unigram models for the library tokie, which treats unknown characters and some pieces differently than `tokenizers`.

In `tokenizers`, a character that is not a piece may become an unknown token. Its score is lower than that of all pieces
by a constant, and neighbours in a word become one token. tokie has another score, and allows such a token only if no
longer piece begins with the character. Therefore tokie gets pieces for unknown characters, with ids after those of the
vocabulary, which are replaced by the unknown token. So both add the same numbers in the same order, and the same
segmentation wins if sums are equal, or nearly.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.tokenizer_json import Score, UnsupportedComponent, dump_tokenizer, read_scores

_MARK = "▁"

# tokie interprets these pieces as bytes.
BYTE_PIECE = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")

# In `tokenizers`, the score of an unknown character is this much below the lowest score of the pieces.
_UNKNOWN_PENALTY = 10.0

# Unknown characters below U+0250 have a piece each. All others are replaced by one of these, which costs time.
_FREQUENT = set(map(chr, range(0x250)))
_PLACEHOLDERS = map(chr, range(0xE000, 0xF900))


class UnigramModel:
    """A Unigram model for tokie.

    Args:
        model: The model of a `tokenizer.json`.

    Attributes:
        byte_pieces: Pieces that tokie cannot find in text.

    Raises:
        UnsupportedComponent: If tokie cannot give the same ids.
    """

    def __init__(self, model: Mapping):
        pieces, self._unknown_id = model["vocab"], model["unk_id"]
        if self._unknown_id is None:
            raise UnsupportedComponent("tokie needs an unknown token")
        if model["byte_fallback"]:
            raise UnsupportedComponent("a Unigram model with byte fallback")
        last_number = {piece: number for number, (piece, _) in enumerate(pieces)}
        if _MARK not in last_number:
            raise UnsupportedComponent(f"a Unigram model without the piece {_MARK}")
        lowest_score = min(read_scores(map(repr, sorted({score for _, score in pieces})[:4])))
        score = lowest_score - _UNKNOWN_PENALTY
        if score + max(score, pieces[self._unknown_id][1]) >= lowest_score:
            raise UnsupportedComponent("a Unigram model with high positive scores")
        self._score = score
        self._model = model
        self._size = len(pieces)
        self.byte_pieces = frozenset(filter(BYTE_PIECE.fullmatch, last_number))
        # A word is split before each mark, and of equal pieces the last one counts.
        self._reachable = [
            last_number[piece] == number and _MARK not in piece[1:] and piece not in self.byte_pieces
            for number, (piece, _) in enumerate(pieces)
        ]
        chars_in_pieces = set().union(*last_number)
        self._placeholder = next(char for char in _PLACEHOLDERS if char not in chars_in_pieces)
        single = {piece for piece in last_number if len(piece) == 1}
        unreplaced = chars_in_pieces | _FREQUENT
        self._extra_characters = sorted((unreplaced | {self._placeholder}) - single - {" "})
        self._replaced = CharacterSet(lambda chars: [char not in unreplaced for char in chars])

    def to_json(self, tokenizer: Mapping) -> str:
        """Returns the `tokenizer.json` of a tokenizer with this model, for tokie."""
        pieces = self._model["vocab"]
        names = [
            piece if reachable else secrets.token_hex(16)
            for (piece, _), reachable in zip(pieces, self._reachable, strict=True)
        ]
        unknown_score = Score(_literal(self._score))
        vocab = [(name, score) for name, (_, score) in zip(names, pieces, strict=True)]
        vocab += [(char, unknown_score) for char in self._extra_characters]
        return dump_tokenizer({**tokenizer, "model": {**self._model, "vocab": vocab}})

    def spell(self, texts: Sequence[str]) -> list[str]:
        """Replaces the characters that are in no piece of `to_json`."""
        texts = list(texts)
        for index, positions in self._replaced.positions(texts).items():
            codes = np.frombuffer(texts[index].encode("utf-32-le"), "<u4").copy()
            codes[positions] = ord(self._placeholder)
            texts[index] = codes.tobytes().decode("utf-32-le")
        return texts

    def restore(self, ids: np.ndarray, lengths: np.ndarray) -> FlatIds:
        """Replaces each run of unknown characters by the unknown token.

        No run is longer than a word, since words begin with a mark, which is known. With a vocabulary of 100 pieces, in
        which 0 is the unknown token, the ids [7, 101, 100, 5 | 103] of two texts become [7, 0, 5 | 0].

        Args:
            ids: tokie's ids, uint32 [tokens].
            lengths: The number of tokens in each text, int64 [texts].

        Returns:
            The ids and lengths that `tokenizers` gives.
        """
        if not len(ids) or ids.max() < self._size:
            return ids, lengths
        is_unknown = (ids >= self._size) | (ids == self._unknown_id)
        ends = np.cumsum(lengths)
        # A token is dropped if it continues a run of unknown tokens of the same text.
        is_kept = np.ones(len(ids), bool)
        is_kept[1:] = ~(is_unknown[1:] & is_unknown[:-1])
        is_kept[(ends - lengths)[lengths > 0]] = True
        new_ends = np.concatenate([[0], np.cumsum(is_kept)])
        ids = np.where(is_unknown, np.uint32(self._unknown_id), ids)
        return ids[is_kept], new_ends[ends] - new_ends[ends - lengths]


def _literal(score: float) -> str:
    """Returns a decimal number that both libraries parse as exactly this score.

    Raises:
        UnsupportedComponent: If no candidate is exact.
    """
    literals = []
    for digits in range(15, 20):
        exponent = Decimal(score).adjusted() + 1 - digits
        nearest = int(Decimal(score).scaleb(-exponent))
        step = max(1, 10 ** (digits - 17) // 2)
        literals += [f"{nearest + step * offset}e{exponent}" for offset in range(-8, 9)]
    for literal, parsed in zip(literals, read_scores(literals), strict=True):
        if parsed == score:
            return literal
    raise UnsupportedComponent(f"a Unigram model with {score!r} as an unknown character's score")
