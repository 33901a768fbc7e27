"""Finding added tokens in texts, as `tokenizers` does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from beam_pipeline.tokenization.normalization import RUST_SPACE

Place = tuple[int, int, int]
"""Where an added token is in a text: its start and end, with the white space that belongs to it, and its id."""


@dataclass(frozen=True)
class Sections:
    """Texts that are cut into items: added tokens, and the sections between them."""

    texts: list[str]
    """The sections, none of which is empty."""
    owners: np.ndarray
    """int64 [sections]: the index of each section's text."""
    at: np.ndarray
    """int64 [sections + tokens]: the index of each section and then of each token among all items."""
    tokens: np.ndarray
    """uint32 [tokens]: the ids of the added tokens."""
    counts: np.ndarray
    """int64 [texts]: how many items each text has."""

    @classmethod
    def of(cls, parts: Sequence[str], ids: np.ndarray, ends: np.ndarray) -> Sections:
        """Makes sections of texts that were split.

        Args:
            parts: Sections, which may be empty.
            ids: int64 [parts]: the id of the added token after each section; negative if there is none.
            ends: bool [parts]: which sections are the last of their text.
        """
        kept = np.empty((len(parts), 2), bool)
        kept[:, 0] = np.fromiter(map(len, parts), np.int64, len(parts)) > 0
        kept[:, 1] = ids >= 0
        at = np.cumsum(kept).reshape(kept.shape) - 1
        owners = np.cumsum(ends) - ends
        return cls(
            list(filter(None, parts)),
            owners[kept[:, 0]],
            np.concatenate([at[kept[:, 0], 0], at[kept[:, 1], 1]]),
            ids[kept[:, 1]].astype(np.uint32),
            np.bincount(owners, kept.sum(1), int(ends.sum())).astype(np.int64),
        )


def cut_at(texts: Sequence[str], found: Mapping[int, Sequence[Place]]) -> Sections:
    """Cuts texts at the places in each of them that contains a token, by the index of the text."""
    parts: list[str] = []
    ids: list[int] = []
    ends: list[bool] = []
    for index, text in enumerate(texts):
        done = 0
        for start, end, token in found.get(index, ()):
            parts.append(text[done:start])
            ids.append(token)
            ends.append(False)
            done = end
        parts.append(text[done:])
        ids.append(-1)
        ends.append(True)
    return Sections.of(parts, np.array(ids, np.int64), np.array(ends, bool))


class StringSet:
    """A set of strings, and a fast search for them in a batch of texts."""

    def __init__(self, strings: Collection[str]):
        self._pattern = re.compile(trie_pattern(strings))
        chars = set("".join(strings))
        self._separator = next(char for char in map(chr, range(0x110000)) if char not in chars)
        # (One trie, since `re` finds the first character of a match faster if all alternatives are on one level.)
        self._split = re.compile(f"({trie_pattern([*strings, self._separator])})")
        self._empty = not strings

    def __bool__(self) -> bool:
        return not self._empty

    def find(self, texts: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """Yields the index of the text, the place and the string: from left to right, and the longest of each place."""
        if self._empty:
            return
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        index = 0
        for match in self._pattern.finditer(self._separator.join(texts)):
            while starts[index + 1] <= match.start():
                index += 1
            yield index, match.start() - starts[index], match[0]

    def split(self, texts: Sequence[str]) -> tuple[list[str], list[str]] | None:
        """Splits texts at all of the strings, many times as fast as `find` finds them.

        Returns:
            The sections, and the string after each: an empty one if it is the last section of its text. None if there
            are none of the strings, or if the texts contain a certain control character.
        """
        joined = self._separator.join(texts)
        if self._empty or not self._pattern.search(joined) or joined.count(self._separator) >= len(texts):
            return None
        parts = self._split.split(joined)
        strings = ["" if string == self._separator else string for string in parts[1::2]]
        return parts[::2], [*strings, ""]

    def places(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Returns the places in each text that contains any, ascending, by the index of the text."""
        places: dict[int, list[int]] = {}
        for index, start, _ in self.find(texts):
            places.setdefault(index, []).append(start)
        return places


class Literals:
    """A set of added tokens that are searched for together: all on the text as it is, or all on the normalized text.

    Args:
        tokens: The entries of `added_tokens` in the `tokenizer.json`, with the content that is searched for.
        ignored: Contents that are plain text. They still hide tokens that they overlap with.
    """

    def __init__(self, tokens: Sequence[Mapping] = (), ignored: Collection[str] = ()):
        self._tokens = {token["content"]: token for token in tokens}
        self._ignored = frozenset(ignored)
        any_found = self._tokens.keys() - self._ignored
        self._strings = StringSet(self._tokens if any_found else ())
        plain = not any(token[key] for token in tokens for key in ("single_word", "lstrip", "rstrip"))
        self._ids = {"": -1, **{token["content"]: token["id"] for token in tokens}} if plain else None

    def __bool__(self) -> bool:
        return bool(self._strings)

    def find(self, texts: Sequence[str]) -> tuple[dict[int, list[Place]], list[int]]:
        """Finds the tokens in a batch of texts.

        Returns:
            The places in each text that contains a token, by the index of the text; and the indices of texts in which
            this class cannot determine them.
        """
        found: dict[int, list[Place]] = {}
        unknown: list[int] = []
        for index, start, content in self._strings.find(texts):
            if content in self._ignored or (unknown and unknown[-1] == index):
                continue
            place = self._place(texts[index], start, content, found.get(index))
            if place is None:
                unknown.append(index)
                found.pop(index, None)
            else:
                found.setdefault(index, []).append(place)
        return found, unknown

    def split(self, texts: Sequence[str]) -> Sections | None:
        """Cuts texts at the tokens in them, as `cut_at` does, but several times as fast.

        Returns:
            None if there are neither tokens nor ignored contents in the texts, or if this cannot find them.
        """
        split = None if self._ids is None else self._strings.split(texts)
        if split is None:
            return None
        parts, contents = split
        if not self._ignored.isdisjoint(contents):
            parts, contents = _without(self._ignored, parts, contents)
        ids = np.fromiter(map(self._ids.__getitem__, contents), np.int64, len(contents))
        return Sections.of(parts, ids, ids < 0)

    def _place(self, text: str, start: int, content: str, before: list[Place] | None) -> Place | None:
        """Returns the place of a token, or None if `tokenizers` has rules for it that are not implemented here."""
        token = self._tokens[content]
        done = before[-1][1] if before else 0
        if token["single_word"] or start < done:
            return None
        end = start + len(content)
        if token["lstrip"]:
            while start > done and text[start - 1] in RUST_SPACE:
                start -= 1
        if token["rstrip"]:
            while end < len(text) and text[end] in RUST_SPACE:
                end += 1
        return start, end, token["id"]


def _without(
    ignored: Collection[str], parts: Sequence[str], contents: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Joins the sections around ignored strings, which are text, to one with the string between them."""
    joined, kept, text = [], [], ""
    for part, content in zip(parts, contents, strict=True):
        if content in ignored:
            text += part + content
        else:
            joined.append(text + part)
            kept.append(content)
            text = ""
    return joined, kept


def trie_pattern(strings: Collection[str]) -> str:
    """Returns a pattern for the longest of the strings at each position, whose time does not grow with their number."""
    root: dict = {}
    for string in strings:
        node = root
        for char in string:
            node = node.setdefault(char, {})
        node[""] = {}
    return _node_pattern(root) if root else r"(?!)"


def _node_pattern(node: Mapping[str, Mapping]) -> str:
    """Returns a pattern for the strings below a node of a trie. The key "" marks the end of a string."""
    branches = []
    for char, child in node.items():
        if not char:
            continue
        prefix = re.escape(char)
        while len(child) == 1 and "" not in child:  # a chain
            ((char, child),) = child.items()
            prefix += re.escape(char)
        branches.append(prefix + _node_pattern(child))
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in node else pattern
