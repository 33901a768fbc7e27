"""Strings that know where each of their characters comes from, through all that a chat template does to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

import numpy as np

TEMPLATE = "\0"
"""The mark of characters that the template wrote."""
TOOLS = chr(0x7FFFE)
"""The mark of characters from the descriptions of tools."""
MOST_MESSAGES = 0x7FFF0
GENERATION = 0x80000
"""Added to the marks of characters within `{% generation %}`."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
_MARKS = "utf-32-le", "surrogatepass"
"""The encoding of marks as integers."""


def message_mark(number: int) -> str:
    """Returns the mark of characters from a message, which are counted from 0."""
    return chr(number + 1)


class Traced(str):
    """A string with a mark for each of its characters.

    Methods of strings return traced strings, so that the marks follow their characters. Where a method has no rule
    here, the whole result gets the first mark of the string that is not the template's.
    """

    marks: str
    """As long as the string."""

    def __new__(cls, text: str = "", marks: str | None = None) -> Traced:
        self = super().__new__(cls, str.__str__(text))
        self.marks = TEMPLATE * len(text) if marks is None else marks
        return self

    @classmethod
    def of(cls, text: str) -> Traced:
        """Returns the string itself if it is traced, and otherwise one whose characters are the template's."""
        return text if isinstance(text, cls) else cls(text)

    def __str__(self) -> str:
        return self

    def __reduce__(self) -> tuple[type[Traced], tuple[str, str]]:
        return Traced, (str.__str__(self), self.marks)

    def __add__(self, other: str) -> Traced:
        if not isinstance(other, str):
            return NotImplemented
        return concat((self, other))

    def __radd__(self, other: str) -> Traced:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Traced:
        return Traced(super().__mul__(count), self.marks * count)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        return Traced(super().__getitem__(key), self.marks[key])

    def __iter__(self) -> Iterator[Traced]:
        return map(Traced, super().__iter__(), self.marks)

    def strip(self, chars: str | None = None, /) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Traced:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> Traced:
        return self[: len(super().rstrip(chars))]

    def removeprefix(self, prefix: str, /) -> Traced:
        return self[len(self) - len(super().removeprefix(prefix)) :]

    def removesuffix(self, suffix: str, /) -> Traced:
        return self[: len(super().removesuffix(suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Traced]:  # type: ignore[override]
        return self._parts(super().split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Traced]:  # type: ignore[override]
        return self._parts(super().rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[Traced]:  # type: ignore[override]
        return self._parts(super().splitlines(keepends), 0)

    def partition(self, sep: str, /) -> tuple[Traced, Traced, Traced]:
        return tuple(self._parts(super().partition(sep), 0))  # type: ignore[return-value]

    def rpartition(self, sep: str, /) -> tuple[Traced, Traced, Traced]:
        return tuple(self._parts(super().rpartition(sep), 0))  # type: ignore[return-value]

    def _parts(self, parts: Iterable[str], between: int) -> list[Traced]:
        """Returns parts with their marks.

        Args:
            parts: Substrings in their order.
            between: The size of the separator between them; 0: white space, or nothing.
        """
        found, start = [], 0
        for part in parts:
            start = start if between else self.find(part, start)
            found.append(self[start : start + len(part)])
            start += len(part) + between
        return found

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:  # type: ignore[override]
        if not old:  # between all characters
            return _marked(super().replace(old, new, count), first_mark((self, new)))
        return Traced.of(new).join(self.split(old, count))

    def join(self, strings: Iterable[str], /) -> Traced:
        parts: list[str] = []
        for string in strings:
            parts += [self, string]
        return concat(parts[1:])

    def _changed(self, name: str, *args: Any, **kwargs: Any) -> Traced:
        """Returns the result of another method. Its marks are kept if it is as long."""
        text = getattr(super(), name)(*args, **kwargs)
        return Traced(text, self.marks) if len(text) == len(self) else _marked(text, first_mark(self))


def _method(name: str) -> Callable[..., Traced]:
    def method(self: Traced, *args: Any, **kwargs: Any) -> Traced:
        return self._changed(name, *args, **kwargs)

    method.__name__ = name
    return method


for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper", "translate"):
    setattr(Traced, _name, _method(_name))
for _name in ("center", "expandtabs", "ljust", "rjust", "zfill"):
    setattr(Traced, _name, _method(_name))


def concat(parts: Iterable[Any]) -> str:
    """Joins strings, and other values as strings.

    >>> concat(["<user>", Traced("hi", message_mark(0) * 2)]).marks
    '\\x00\\x00\\x00\\x00\\x00\\x00\\x01\\x01'

    Returns:
        A traced string if any of them is one.
    """
    strings = [part if isinstance(part, str) else _written(part) for part in parts]
    text = "".join(strings)
    if not any(isinstance(string, Traced) for string in strings):
        return text
    marks = [string.marks if isinstance(string, Traced) else TEMPLATE * len(string) for string in strings]
    return Traced(text, "".join(marks))


def _written(value: Any) -> str:
    text = str(value)
    if not isinstance(value, Mapping | list | tuple) and _ADDRESS.search(text):
        raise TypeError("it writes the address of an object, which differs from run to run")
    return with_mark_of(value, text)


def trace(value: Any, mark: str) -> Any:
    """Returns a JSON value with all of its strings and keys traced to one mark."""
    if isinstance(value, str):
        return Traced(value, mark * len(value))
    if isinstance(value, list):
        return [trace(item, mark) for item in value]
    if isinstance(value, dict):
        return {trace(key, mark): trace(item, mark) for key, item in value.items()}
    return value


def first_mark(value: Any) -> str:
    """Returns the first mark in a value's strings that is not the template's, or else that."""
    if isinstance(value, Traced):
        return value.marks.lstrip(TEMPLATE)[:1] or TEMPLATE
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (item for pair in value.items() for item in pair)
    elif isinstance(value, list | tuple):
        items = value
    return next((mark for mark in map(first_mark, items) if mark != TEMPLATE), TEMPLATE)


def with_mark_of(sources: Any, result: Any) -> Any:
    """Returns a value; if it is a string without marks, with the first mark in the values that it was made of.

    >>> with_mark_of(["-", Traced("hi", message_mark(0) * 2)], "HI").marks
    '\\x01\\x01'
    """
    if not isinstance(result, str) or isinstance(result, Traced):
        return result
    mark = first_mark(sources)
    return result if mark == TEMPLATE else _marked(result, mark)


def _marked(text: str, mark: str) -> Traced:
    return Traced(text, mark * len(text))


def in_generation(text: str) -> Traced:
    """Returns the text with all characters marked as the template's `{% generation %}`."""
    traced = Traced.of(text)
    marks = marks_of(traced) | np.uint32(GENERATION)
    return Traced(traced, marks.tobytes().decode(*_MARKS))


def marks_of(text: str) -> np.ndarray:
    """Returns the marks of a string as uint32 [characters]."""
    return np.frombuffer(Traced.of(text).marks.encode(*_MARKS), np.uint32)
