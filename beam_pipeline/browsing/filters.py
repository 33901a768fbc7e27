"""What a request asks for: the parameters of its URL, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from tokenmill_reader.format.json_form import COUNT

Span = tuple[int, int]
"""The first character of a match, and the one after its last."""

_MOST = COUNT[-1]


class BadRequest(Exception):
    """The URL has a parameter that makes no sense."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The parameters of a list of rows or documents. Those with their default are not in the URL."""

    split: str = ""
    first: int = 0
    """Where the list begins: an index among the rows that the index selects, or the documents of a unit."""
    text: str = ""
    case: bool = False
    """Whether the text's case matters."""
    source: str = ""
    """A part of the paths of input files."""
    unit: int | None = None
    min: int | None = None
    """The smallest number of tokens."""
    max: int | None = None
    """The largest number of tokens."""

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filter:
        """Parses the parameters of a URL. Empty ones are as if they were absent; unknown ones are ignored.

        Raises:
            BadRequest: If a number is not one.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = query.get(field.name, "")
            if text:
                values[field.name] = (
                    text if field.name in ("split", "text", "source") else _number(field.name, text)
                )
        return cls(**values | ({"case": True} if values.get("case") else {}))

    @property
    def needs_scan(self) -> bool:
        """Whether rows must be read to know whether they match."""
        return bool(self.text) or self.min is not None or self.max is not None

    def url(self, page: str, **changes: Any) -> str:
        """Returns the URL of a page with these parameters, some of them changed."""
        changed = replace(self, **changes)
        values = {field.name: getattr(changed, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return f"{page}?" + urlencode(
            {
                name: int(value) if value is True else value
                for name, value in values.items()
                if value != defaults[name]
            }
        )

    def matcher(self) -> Callable[[str], Span | None]:
        """Returns the function that finds the text in another."""
        pattern = re.compile(re.escape(self.text), 0 if self.case else re.IGNORECASE)

        def find(text: str) -> Span | None:
            match = pattern.search(text)
            return match.span() if match else None

        return find

    def allows(self, tokens: int) -> bool:
        """Returns whether a length is within the limits."""
        return (self.min is None or self.min <= tokens) and (self.max is None or tokens <= self.max)


def _number(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,16}", text) or int(text) > _MOST:
        raise BadRequest(f"{name} is {text[:80]!r}, which is not a whole number from 0 on")
    return int(text)


def token_number(query: Mapping[str, str]) -> int:
    """Returns the first token to show of a row or document. Raises BadRequest if it is not a number."""
    return _number("from", query["from"]) if query.get("from") else 0
