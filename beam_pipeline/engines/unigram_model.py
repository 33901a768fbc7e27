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

from beam_pipeline.tokenization.characters import CharacterSet
from beam_pipeline.tokenization.tokenizer_json import Score, UnsupportedComponent, dump_tokenizer, read_scores

_MARK = "▁"

# tokie interprets these pieces as bytes.
_BYTE_PIECE = re.compile("<0x[+0-9A-Fa-f][0-9A-Fa-f]>")

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
        pieces, self._unknown = model["vocab"], model["unk_id"]
        if self._unknown is None:
            raise UnsupportedComponent("tokie needs an unknown token")
        if model["byte_fallback"]:
            raise UnsupportedComponent("a Unigram model with byte fallback")
        last = {piece: number for number, (piece, _) in enumerate(pieces)}
        if _MARK not in last:
            raise UnsupportedComponent(f"a Unigram model without the piece {_MARK}")
        lowest = min(read_scores(map(repr, sorted({score for _, score in pieces})[:4])))
        score = lowest - _UNKNOWN_PENALTY
        if score + max(score, pieces[self._unknown][1]) >= lowest:
            raise UnsupportedComponent("a Unigram model with high positive scores")
        self._score = score
        self._model = model
        self._size = len(pieces)
        self.byte_pieces = frozenset(filter(_BYTE_PIECE.fullmatch, last))
        # A word is split before each mark, and of equal pieces the last one counts.
        self._reachable = [
            last[piece] == number and _MARK not in piece[1:] and piece not in self.byte_pieces
            for number, (piece, _) in enumerate(pieces)
        ]
        known = set().union(*last)
        self._placeholder = next(char for char in _PLACEHOLDERS if char not in known)
        single = {piece for piece in last if len(piece) == 1}
        self._added = sorted((known | _FREQUENT | {self._placeholder}) - single - {" "})
        found = known | _FREQUENT
        self._replaced = CharacterSet(lambda chars: [char not in found for char in chars])

    def to_json(self, tokenizer: Mapping) -> str:
        """Returns the `tokenizer.json` of a tokenizer with this model, for tokie."""
        pieces = self._model["vocab"]
        names = [
            piece if reachable else secrets.token_hex(16)
            for (piece, _), reachable in zip(pieces, self._reachable, strict=True)
        ]
        unknown = Score(_literal(self._score))
        vocab = [(name, score) for name, (_, score) in zip(names, pieces, strict=True)]
        vocab += [(char, unknown) for char in self._added]
        return dump_tokenizer({**tokenizer, "model": {**self._model, "vocab": vocab}})

    def replace_unknown(self, texts: Sequence[str]) -> list[str]:
        """Replaces the characters that are in no piece of `to_json`."""
        texts = list(texts)
        for index, places in self._replaced.places(texts).items():
            codes = np.frombuffer(texts[index].encode("utf-32-le"), "<u4").copy()
            codes[places] = ord(self._placeholder)
            texts[index] = codes.tobytes().decode("utf-32-le")
        return texts

    def restore_unknown(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Replaces each run of unknown characters by the unknown token.

        No run is longer than a word, since words begin with a mark, which is known.

        Args:
            ids: tokie's ids, uint32 [tokens].
            lengths: How many each text has, int64 [texts].

        Returns:
            The ids and lengths that `tokenizers` gives.
        """
        if not len(ids) or ids.max() < self._size:
            return ids, lengths
        unknown = (ids >= self._size) | (ids == self._unknown)
        ends = np.cumsum(lengths)
        kept = np.ones(len(ids), bool)
        kept[1:] = ~(unknown[1:] & unknown[:-1])
        kept[(ends - lengths)[lengths > 0]] = True
        before = np.concatenate([[0], np.cumsum(kept)])
        return np.where(unknown, np.uint32(self._unknown), ids)[kept], before[ends] - before[ends - lengths]


def _literal(score: float) -> str:
    """Returns a decimal number that they read as exactly this score.

    Raises:
        UnsupportedComponent: If none was found.
    """
    literals = []
    for digits in range(15, 20):
        exponent = Decimal(score).adjusted() + 1 - digits
        nearest = int(Decimal(score).scaleb(-exponent))
        step = max(1, 10 ** (digits - 17) // 2)
        literals += [f"{nearest + step * offset}e{exponent}" for offset in range(-8, 9)]
    for literal, found in zip(literals, read_scores(literals), strict=True):
        if found == score:
            return literal
    raise UnsupportedComponent(f"a Unigram model with {score!r} as an unknown character's score")
