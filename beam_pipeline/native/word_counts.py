"""The compiled inner loops of counting words (word_counts.c) and of learning merges (merges.c), called by ctypes, which
releases Python's lock. Without them, `tokenizers` does their work, with the same results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

SPACE, BLANK, DROP, SINGLE, KINDS = range(5)  # as in word_counts.c
BORDER = 2**32 - 1  # as in merges.c

_OUT_OF_MEMORY = -(2**63)


# `pa.array` imports pandas, which takes seconds, if it is installed.
def binary_array(values: list[bytes]) -> pa.LargeBinaryArray:
    """Makes an array of byte strings."""
    return _binary_array(_ends(values), b"".join(values))


def _binary_array(ends: np.ndarray, data: bytes | np.ndarray) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


def integer_array(values: np.ndarray) -> pa.Int64Array:
    """Makes an array of integers."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    return pa.Array.from_buffers(pa.int64(), len(values), buffers)


def _ends(values: list[bytes]) -> np.ndarray:
    """Returns 0, and where each of some concatenated byte strings ends, int64."""
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    return ends


class CompiledCounter:
    """Counts the words of texts.

    Args:
        library: The compiled functions.
        classes: uint8 [0x110000], the class of each character.
        contractions: Whether those of English, such as 's, are words, as in GPT-2's pattern.
    """

    def __init__(self, library: ctypes.CDLL, classes: np.ndarray, *, contractions: bool):
        self._library, self._classes, self._contractions = library, classes, contractions
        self._counter = None
        self._clear()

    def _clear(self) -> None:
        self._library.tokenmill_words_free(self._counter)
        self._counter = self._library.tokenmill_words_new(self._classes.ctypes.data, self._contractions)
        if not self._counter:
            raise MemoryError("no memory for counting words")

    def __del__(self) -> None:
        self._library.tokenmill_words_free(self._counter)

    def add(self, texts: list[bytes]) -> None:
        """Counts the words of texts in UTF-8."""
        ends = _ends(texts)
        if self._library.tokenmill_words_count(self._counter, b"".join(texts), ends.ctypes.data, len(texts)):
            raise MemoryError("no memory for the different words of a text")

    def _sizes(self) -> tuple[int, int]:
        sizes = np.empty(2, np.int64)
        self._library.tokenmill_words_size(self._counter, sizes.ctypes.data)
        return int(sizes[0]), int(sizes[1])

    @property
    def bytes(self) -> int:
        """The approximate memory that it uses."""
        words, size = self._sizes()
        return 48 * words + size

    def take(self) -> tuple[pa.LargeBinaryArray, pa.Int64Array]:
        """Returns the words, in any order, and their counts. Then begins at 0."""
        words, size = self._sizes()
        data, ends, counts = (
            np.empty(size, np.uint8),
            np.empty(words + 1, np.int64),
            np.empty(words, np.int64),
        )
        addresses = data.ctypes.data, ends.ctypes.data, counts.ctypes.data
        self._library.tokenmill_words_copy(self._counter, *addresses)
        self._clear()
        return _binary_array(ends, data), integer_array(counts)


def learn_merges(
    library: ctypes.CDLL,
    symbols: np.ndarray,
    runs: Sequence[np.ndarray],
    *,
    tokens: int,
    vocab_size: int,
    min_frequency: int,
    per_step: int,
) -> Iterator[np.ndarray | None]:
    """Learns BPE merges from counted words, as `BpeTrainer` of `tokenizers` does.

    Args:
        library: The compiled functions.
        symbols: uint32 [symbols]: words as ids of single characters, with `BORDER` before the first and after each. Is
            changed.
        runs: int64 [runs] each: where each run of words with equal counts begins in `symbols`, and that count.
        tokens: The number of ids of single characters.
        vocab_size: Number of tokens, those included.
        min_frequency: How often a pair must occur.
        per_step: The number of merges between two yields.

    Yields:
        None after each step, and at last the merges, uint32 [merges, 3]: the ids of the two tokens, and of their
        merger.

    Raises:
        MemoryError: If there is not enough.
    """
    starts, counts = (np.ascontiguousarray(run, np.int64) for run in runs)
    addresses = starts.ctypes.data, counts.ctypes.data
    trainer = library.tokenmill_merges_new(
        symbols.ctypes.data, len(symbols), *addresses, len(starts), tokens, vocab_size, min_frequency
    )
    try:
        done = 0 if trainer else _OUT_OF_MEMORY
        while done >= 0:
            done = library.tokenmill_merges_train(trainer, per_step)
            if done >= 0:
                yield None
        if done == _OUT_OF_MEMORY:
            raise MemoryError("no memory for learning merges")
        merges = np.empty((-1 - done, 3), np.uint32)
        library.tokenmill_merges_copy(trainer, merges.ctypes.data)
        yield merges
    finally:
        library.tokenmill_merges_free(trainer)
