"""Bytes that a byte-level vocabulary lacks, on an engine that needs tokens for all 256.

The engine gets extra tokens for them, which are removed from its ids. `tokenizers` drops these bytes from a word before
it merges, so their neighbours become adjacent. That matters only if some token contains both neighbours in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from beam_pipeline.tokenization.byte_level import byte_characters, missing_bytes
from beam_pipeline.tokenization.library_errors import Flat
from beam_pipeline.tokenization.tokenizer_json import BYTE_ALPHABET, product, unknown_id

_NO_BYTE = 0xFF  # never in UTF-8
_PRINTABLE = np.isin(np.arange(256), np.arange(0x21, 0x7F))


class DroppedBytes:
    """See the module.

    Args:
        model: The model of a byte-level tokenizer, as `tokenizers` gets it.
    """

    def __init__(self, model: Mapping):
        vocab = model["vocab"]
        missing = missing_bytes(vocab)
        self._first = 1 + max(vocab.values(), default=-1)
        self._unknown = unknown_id(model)
        exact = _is_exact(model, missing)
        self.inexact: frozenset[int] = frozenset() if exact else missing
        """Bytes whose characters are left to HF."""
        self._removed = bytes(sorted(missing)) if exact else b""
        if self._removed:
            self._is_removed = np.isin(np.arange(256), sorted(missing))
            # An unknown token in place of a byte keeps its neighbours apart.
            self._joined = _neighbours(vocab) if self._unknown is None else np.zeros((256, 256), bool)

    def places(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Finds bytes whose neighbours may merge.

        Returns:
            The positions of their characters, ascending, by the index of the text. Texts without any are left out.
        """
        if not self._removed or self._unknown is not None:
            return {}
        parts = [text.encode() for text in texts]
        joined = b"\xff".join([b"", *parts, b""])
        if len(joined.translate(None, self._removed)) == len(joined):
            return {}
        data = np.frombuffer(joined, np.uint8)
        runs = np.flatnonzero(
            np.diff(self._is_removed[data])
        )  # in pairs: before the first byte, and the last byte
        before, last = runs[::2], runs[1::2]
        first = before + 1
        suspect = self._joined[data[before], data[last + 1]] & ~_are_words_apart(data, before, last)
        if not suspect.any():
            return {}
        starts = np.cumsum([1, *(len(part) + 1 for part in parts)])[:-1]
        chars = np.cumsum((data & 0xC0) != 0x80)  # 1 + the number of characters before the byte's own
        found: dict[int, list[int]] = {}
        for at in first[suspect].tolist():
            index = int(np.searchsorted(starts, at, side="right")) - 1
            found.setdefault(index, []).append(int(chars[at] - chars[starts[index] - 1]) - 1)
        return {index: sorted({*places}) for index, places in found.items()}

    def remove(self, ids: np.ndarray, lengths: np.ndarray) -> Flat:
        """Removes the extra tokens from the ids of pieces, or replaces them by the unknown token."""
        if not self._removed or not (extra := ids >= self._first).any():
            return ids, lengths
        if self._unknown is not None:
            return np.where(extra, ids.dtype.type(self._unknown), ids), lengths
        kept = np.concatenate([[0], np.cumsum(~extra)])
        return ids[~extra], np.diff(kept[np.cumsum(lengths)], prepend=0)


def _is_exact(model: Mapping, missing: frozenset[int]) -> bool:
    """Whether `tokenizers` drops or replaces each missing byte on its own, wherever it occurs."""
    unknown, chars = model["unk_token"], {byte_characters()[byte] for byte in missing}
    if any(
        len(key) > 1 and not chars.isdisjoint(key) and BYTE_ALPHABET.issuperset(key) for key in model["vocab"]
    ):
        return False  # a token with a byte that is none
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
    found = np.zeros((256, 256), bool)
    found[data[:-1], data[1:]] = True
    found[_NO_BYTE] = found[:, _NO_BYTE] = False
    return found


def _are_words_apart(data: np.ndarray, before: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Whether a word begins in a run of bytes, or behind it: bool [runs].

    In all supported patterns, white space but for line breaks ends a word before it, and a line break ends one if no
    white space or slash follows.
    """
    starts_word = np.isin(data[before + 1], np.frombuffer(b"\t\v\f ", np.uint8)) & _PRINTABLE[data[before]]
    follows = data[last + 1]
    ends_word = (
        np.isin(data[last], np.frombuffer(b"\r\n", np.uint8)) & _PRINTABLE[follows] & (follows != ord("/"))
    )
    return starts_word | ends_word
