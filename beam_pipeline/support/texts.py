"""Texts in one buffer, from the bytes of a file to compiled code, which releases Python's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

READ_BEYOND = 16
"""Compiled code reads up to this many bytes after a text, whose values do not matter."""

# The first bytes of characters beyond ASCII that are white space.
_WHITE_HEADS = np.zeros(256, bool)
_WHITE_HEADS[[*range(0x21), 0xC2, 0xE1, 0xE2, 0xE3]] = True


def contents(texts: Sequence[str]) -> Iterator[bytes]:
    """Yields the bytes of each text. Only other sequences than `Texts` may contain halves of surrogate pairs."""
    if not isinstance(texts, Texts):
        return (text.encode(errors="surrogatepass") for text in texts)
    data = memoryview(texts.data)
    return (
        bytes(data[start:end]) for start, end in zip(texts.starts.tolist(), texts.ends.tolist(), strict=True)
    )


class Texts(Sequence[str]):
    """Texts in UTF-8. To Python code they are strings, each of which is decoded when it is asked for.

    >>> texts = Texts.of(["tea", "", "thé"])
    >>> texts[2], texts.sizes.tolist(), list(texts.take([1, 0]))
    ('thé', [3, 0, 4], ['', 'tea'])

    Args:
        data: Bytes, among which the texts are, and READ_BEYOND more after the last of them.
        starts: int64 [texts]: where each text begins.
        ends: int64 [texts]: where each text ends.
    """

    def __init__(self, data: bytes | np.ndarray, starts: np.ndarray, ends: np.ndarray):
        self.data = np.frombuffer(data, np.uint8)
        self.starts = np.ascontiguousarray(starts, np.int64)
        self.ends = np.ascontiguousarray(ends, np.int64)

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Returns these texts, which are encoded unless they are `Texts` already."""
        if isinstance(texts, Texts):
            return texts
        return cls.of_bytes(list(map(str.encode, texts)))

    @classmethod
    def of_bytes(cls, contents: Sequence[bytes]) -> Texts:
        """Copies texts in valid UTF-8."""
        sizes = np.fromiter(map(len, contents), np.int64, len(contents))
        ends = np.cumsum(sizes)
        return cls(b"".join([*contents, bytes(READ_BEYOND)]), ends - sizes, ends)

    @classmethod
    def join(cls, parts: Sequence[Texts]) -> Texts:
        """Concatenates texts. Their buffers are copied."""
        offsets = np.cumsum([0, *(len(part.data) for part in parts)])
        starts, ends = (
            np.concatenate([places + offset for places, offset in zip(all_places, offsets, strict=False)])
            for all_places in ([part.starts for part in parts], [part.ends for part in parts])
        )
        return cls(np.concatenate([part.data for part in parts]), starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice) or "_strings" in self.__dict__:
            return self._strings[index]
        return str(self.data[self.starts[index] : self.ends[index]], "utf-8")

    def __iter__(self):
        return iter(self._strings)

    @cached_property
    def _strings(self) -> list[str]:
        data, spans = memoryview(self.data), zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        first, last = int(self.starts.min(initial=len(data))), int(self.ends.max(initial=0))
        if int(self.data[first:last].max(initial=0)) < 128:  # slices of a string take a third of the time
            decoded = str(data[first:last], "ascii")
            return [decoded[start - first : end - first] for start, end in spans]
        return [str(data[start:end], "utf-8") for start, end in spans]

    @property
    def sizes(self) -> np.ndarray:
        """int64 [texts]: the size of each text in bytes."""
        return self.ends - self.starts

    def divide_characters(self) -> bool:
        """Determines whether a text begins within a character, although the bytes of all together are UTF-8.

        >>> Texts("thé".encode() + bytes(READ_BEYOND), np.array([0, 3]), np.array([3, 4])).divide_characters()
        True
        """
        return bool(((self.data[self.starts] & 0xC0 == 0x80) & (self.sizes > 0)).any())

    def take(self, indices: np.ndarray | Sequence[int]) -> Texts:
        """Returns the texts at these indices, which are not copied."""
        return Texts(self.data, self.starts[indices], self.ends[indices])

    def are_blank(self) -> np.ndarray:
        """Returns which texts are empty or white space only: bool [texts].

        >>> Texts.of(["tea", "", " \\n", "\\u3000"]).are_blank().tolist()
        [False, True, True, True]
        """
        blank = self.starts == self.ends
        for index in np.flatnonzero(_WHITE_HEADS[self.data[self.starts]] & ~blank).tolist():
            blank[index] = self[index].isspace()
        return blank
