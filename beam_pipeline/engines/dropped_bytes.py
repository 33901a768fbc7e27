"""Bytes that a byte-level vocabulary lacks, on an engine that needs tokens for all 256.

The engine gets extra tokens for them, which are removed from its ids. `tokenizers` drops these bytes from a word before
it merges, so their neighbours become adjacent. That matters only if some token contains both neighbours in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from beam_pipeline.engines.token_arrays import FlatIds
from beam_pipeline.tokenization.byte_level import byte_characters, missing_bytes
from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET, product, unknown_id

_NO_BYTE = 0xFF  # never in UTF-8
_PRINTABLE = np.isin(np.arange(256), np.arange(0x21, 0x7F))


class DroppedBytes:
    """Treats the bytes that the vocabulary of a byte-level tokenizer lacks as `tokenizers` does.

    Args:
        model: The model, as `tokenizers` gets it.
    """

    def __init__(self, model: Mapping):
        vocab = model["vocab"]
        missing = missing_bytes(vocab)
        self._first_extra_id = 1 + max(vocab.values(), default=-1)
        self._unknown_id = unknown_id(model)
        exact = _is_exact(model, missing)
        self.inexact: frozenset[int] = frozenset() if exact else missing
        """Bytes whose characters HF encodes."""
        self._removable_bytes = bytes(sorted(missing)) if exact else b""
        if self._removable_bytes:
            self._is_removed = np.isin(np.arange(256), sorted(missing))
            # An unknown token in place of a byte keeps its neighbours apart.
            self._are_neighbours = (
                _neighbours(vocab) if self._unknown_id is None else np.zeros((256, 256), bool)
            )

    def positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Finds missing bytes whose neighbours may merge.

        If the vocabulary lacks the byte of "+" and has the token "ab", the texts ["a+b", "a+c"] give {0: [1]}.

        Returns:
            The positions of the bytes' characters, ascending, by the index of the text. Texts without any are left out.
        """
        if not self._removable_bytes or self._unknown_id is not None:
            return {}
        encoded_texts = [text.encode() for text in texts]
        joined = b"\xff".join([b"", *encoded_texts, b""])
        if len(joined.translate(None, self._removable_bytes)) == len(joined):
            return {}
        data = np.frombuffer(joined, np.uint8)
        # Runs of missing bytes: the byte before the first one, and the last one, in turn.
        bounds = np.flatnonzero(np.diff(self._is_removed[data]))
        previous, last = bounds[::2], bounds[1::2]
        is_suspect = self._are_neighbours[data[previous], data[last + 1]]
        is_suspect &= ~_are_words_apart(data, previous, last)
        if not is_suspect.any():
            return {}
        starts = np.cumsum([1, *(len(encoded_text) + 1 for encoded_text in encoded_texts)])[:-1]
        chars = np.cumsum((data & 0xC0) != 0x80)  # 1 + the number of characters before the byte's own
        positions: dict[int, list[int]] = {}
        for byte_position in (previous[is_suspect] + 1).tolist():
            index = int(np.searchsorted(starts, byte_position, side="right")) - 1
            positions.setdefault(index, []).append(int(chars[byte_position] - chars[starts[index] - 1]) - 1)
        return {index: sorted({*text_positions}) for index, text_positions in positions.items()}

    def remove(self, ids: np.ndarray, lengths: np.ndarray) -> FlatIds:
        """Removes the extra tokens from the ids of pieces, or replaces them by the unknown token."""
        if not self._removable_bytes or not (is_extra := ids >= self._first_extra_id).any():
            return ids, lengths
        if self._unknown_id is not None:
            return np.where(is_extra, ids.dtype.type(self._unknown_id), ids), lengths
        tokens_before = np.concatenate([[0], np.cumsum(~is_extra)])
        return ids[~is_extra], np.diff(tokens_before[np.cumsum(lengths)], prepend=0)


def _is_exact(model: Mapping, missing: frozenset[int]) -> bool:
    """Determines whether `tokenizers` drops or replaces each missing byte on its own, wherever it occurs."""
    unknown, chars = model["unk_token"], {byte_characters()[byte] for byte in missing}
    if any(
        len(key) > 1 and not chars.isdisjoint(key) and BYTE_ALPHABET.issuperset(key) for key in model["vocab"]
    ):
        return False  # a token contains a missing byte
    if unknown is None:
        return True
    merged = {part for merge in model["merges"] for part in (*merge, product(model, merge))}
    return unknown in model["vocab"] and not model["fuse_unk"] and unknown not in merged


def _neighbours(vocab: Mapping[str, int]) -> np.ndarray:
    """Returns bool [256, 256]: which bytes follow each other in some token."""
    table = np.full(0x110000, _NO_BYTE, np.uint8)
    for byte, char in byte_characters().items():
        table[ord(char)] = byte
    data = table[np.frombuffer("\n".join(vocab).encode("utf-32-le", "surrogatepass"), "<u4")]
    are_neighbours = np.zeros((256, 256), bool)
    are_neighbours[data[:-1], data[1:]] = True
    are_neighbours[_NO_BYTE] = are_neighbours[:, _NO_BYTE] = False
    return are_neighbours


def _are_words_apart(data: np.ndarray, previous: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Determines whether a word begins in a run of bytes, or directly after it.

    In all supported patterns, white space other than line breaks ends the word before it, and a line break ends one if
    no white space or slash follows.

    Args:
        data: uint8 [bytes].
        previous: Integers [runs], the index of the byte before each run.
        last: Integers [runs], the index of the last byte of each run.

    Returns:
        bool [runs].
    """
    starts_word = (
        np.isin(data[previous + 1], np.frombuffer(b"\t\v\f ", np.uint8)) & _PRINTABLE[data[previous]]
    )
    next_byte = data[last + 1]
    is_line_break = np.isin(data[last], np.frombuffer(b"\r\n", np.uint8))
    return starts_word | (is_line_break & _PRINTABLE[next_byte] & (next_byte != ord("/")))
