"""Control tokens in a rendered conversation: those that the template wrote, and those that a message spells."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.conversations.template import RenderingError
from beam_pipeline.conversations.traced import GENERATION, TEMPLATE
from beam_pipeline.engines.literals import StringSet

# Unicode's noncharacters, which no text needs: one between the characters of a token that a message spells keeps the
# template from reading it.
_BREAKERS = tuple(chr(0x10000 * plane + 0xFFFE) for plane in range(16, 0, -1))


class ControlSpan(NamedTuple):
    """A control token that the template wrote."""

    start: int
    end: int
    text: str


def control_tokens(
    tokenizer: Mapping[str, Any], control_ids: Collection[int]
) -> dict[str, Mapping[str, Any]]:
    """Returns the entries of the added tokens that are control tokens, by their content.

    Args:
        tokenizer: A parsed `tokenizer.json`.
        control_ids: See `control_tokens`.
    """
    return {
        token["content"]: token
        for token in tokenizer["added_tokens"]
        if token["special"] or token["id"] in control_ids
    }


class ControlFinder:
    """Finds control tokens.

    Args:
        contents: Their texts.
    """

    def __init__(self, contents: Collection[str]) -> None:
        self._strings = StringSet(sorted(contents))
        escaped = (json.dumps(content, ensure_ascii=False)[1:-1] for content in contents)
        self._strings_of_json = StringSet(sorted({*contents, *escaped}))

    def spelling(self, documents: Sequence[str]) -> set[int]:
        """Returns the indices of the JSON documents in which a string may contain any of the tokens."""
        return {index for index, _, _ in self._strings_of_json.find(documents)}

    def spells_any(self, value: Any) -> bool:
        """Determines whether a string of a JSON value contains any of the tokens."""
        return next(self._strings.find([*_strings(value)]), None) is not None

    def find(self, texts: Sequence[str]) -> list[list[tuple[int, str]]]:
        """Returns the places of all tokens in each text, whoever wrote them, and their texts."""
        tokens: list[list[tuple[int, str]]] = [[] for _ in texts]
        for index, start, content in self._strings.find(texts):
            tokens[index].append((start, content))
        return tokens

    def breaker_for(self, text: str) -> str | None:
        """Returns a character that is not in the text, nor escaped in it; None if all that could be used are."""
        return next(
            (breaker for breaker in _BREAKERS if breaker not in text and not self.is_escaped(breaker, text)),
            None,
        )

    def is_escaped(self, breaker: str, text: str) -> bool:
        """Determines whether a text has the character as JSON, Python or a URL escapes it."""
        escapes = (json.dumps(breaker)[1:-1], repr(breaker)[1:-1], urllib.parse.quote(breaker))
        return any(escape in text for escape in escapes)

    def broken(self, value: Any, breaker: str) -> Any:
        """Returns a JSON value with `breaker` after the first character of each token that its strings spell."""
        if isinstance(value, str):
            pieces, end = [], 0
            for _, start, _ in self._strings.find([value]):
                pieces += [value[end : start + 1], breaker]
                end = start + 1
            return "".join([*pieces, value[end:]])
        if isinstance(value, list):
            return [self.broken(item, breaker) for item in value]
        if isinstance(value, dict):
            return {
                self.broken(key, breaker): item if key == "role" else self.broken(item, breaker)
                for key, item in value.items()
            }
        return value

    def spans(self, text: str, marks: Sequence[int] | np.ndarray) -> tuple[list[ControlSpan], bool]:
        """Returns the tokens of which the template wrote every character, and whether there are any others.

        Raises:
            RenderingError: If one consists of a message's characters, although no message spells it.
        """
        spans, mixed = [], False
        for _, start, content in self._strings.find([text]):
            end = start + len(content)
            owners = np.asarray(marks[start:end]) % GENERATION
            if (owners == ord(TEMPLATE)).all():
                spans.append(ControlSpan(start, end, content))
            elif (owners == owners[0]).all():  # messages have breakers in theirs
                raise RenderingError(
                    f"its operations on the text of a message write the control token {content}, or hide who wrote it"
                )
            else:
                mixed = True
        return spans, mixed


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings and keys in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
