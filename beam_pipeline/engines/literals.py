"""Finding added tokens in texts, as `tokenizers` does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from beam_pipeline.tokenization.normalization import RUST_SPACE

TokenSpan = tuple[int, int, int]
"""An added token in a text: its start and end, including the white space that belongs to it, and its id."""


@dataclass(frozen=True)
class Sections:
    """Texts that are cut into items: added tokens, and the sections between them.

    The texts "ab<s>c" and "<s>" have three items and one, if <s> has the id 1:

    >>> cut_at(["ab<s>c", "<s>"], {0: [(2, 5, 1)], 1: [(0, 3, 1)]})  # doctest: +NORMALIZE_WHITESPACE
    Sections(texts=['ab', 'c'], owners=array([0, 0]), indices=array([0, 2, 1, 3]),
             tokens=array([1, 1], dtype=uint32), counts=array([3, 1]))
    """

    texts: list[str]
    """The sections, none of which is empty."""
    owners: np.ndarray
    """int64 [sections]: the index of each section's text."""
    indices: np.ndarray
    """int64 [sections + tokens]: the index of each section, then of each token, among the items of all texts."""
    tokens: np.ndarray
    """uint32 [tokens]: the ids of the added tokens."""
    counts: np.ndarray
    """int64 [texts]: how many items each text has."""

    @classmethod
    def from_parts(cls, parts: Sequence[str], ids: np.ndarray, ends: np.ndarray) -> Sections:
        """Makes sections of texts that were split.

        Args:
            parts: Sections, which may be empty.
            ids: int64 [parts]: the id of the added token after each section; negative if there is none.
            ends: bool [parts]: which sections are the last of their text.
        """
        # A part gives up to two items: the section, unless it is empty, and the token after it.
        is_item = np.empty((len(parts), 2), bool)
        is_item[:, 0] = np.fromiter(map(len, parts), np.int64, len(parts)) > 0
        is_item[:, 1] = ids >= 0
        indices = np.cumsum(is_item).reshape(is_item.shape) - 1
        owners = np.cumsum(ends) - ends
        return cls(
            list(filter(None, parts)),
            owners[is_item[:, 0]],
            np.concatenate([indices[is_item[:, 0], 0], indices[is_item[:, 1], 1]]),
            ids[is_item[:, 1]].astype(np.uint32),
            np.bincount(owners, is_item.sum(1), int(ends.sum())).astype(np.int64),
        )


def cut_at(texts: Sequence[str], spans: Mapping[int, Sequence[TokenSpan]]) -> Sections:
    """Cuts texts at added tokens. `spans` has those of each text that contains any, by the index of the text."""
    parts: list[str] = []
    ids: list[int] = []
    ends: list[bool] = []
    for index, text in enumerate(texts):
        section_start = 0
        for start, end, token in spans.get(index, ()):
            parts.append(text[section_start:start])
            ids.append(token)
            ends.append(False)
            section_start = end
        parts.append(text[section_start:])
        ids.append(-1)
        ends.append(True)
    return Sections.from_parts(parts, np.array(ids, np.int64), np.array(ends, bool))


class StringSet:
    """A set of strings, and a fast search for them in a batch of texts."""

    def __init__(self, strings: Collection[str]):
        self._pattern = re.compile(trie_pattern(strings))
        chars = set("".join(strings))
        self._separator = next(char for char in map(chr, range(0x110000)) if char not in chars)
        # (One trie, since `re` finds the first character of a match faster if all alternatives are on one level.)
        self._split = re.compile(f"({trie_pattern([*strings, self._separator])})")
        self._is_empty = not strings

    def __bool__(self) -> bool:
        return not self._is_empty

    def find(self, texts: Sequence[str]) -> Iterator[tuple[int, int, str]]:
        """Yields (index of the text, position, string): from left to right, and the longest string of a position.

        >>> list(StringSet(["<s>", "<s>>", "!"]).find(["a!<s>>", "<s>"]))
        [(0, 1, '!'), (0, 2, '<s>>'), (1, 0, '<s>')]
        """
        if self._is_empty:
            return
        starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        index = 0
        for match in self._pattern.finditer(self._separator.join(texts)):
            while starts[index + 1] <= match.start():
                index += 1
            yield index, match.start() - starts[index], match[0]

    def split(self, texts: Sequence[str]) -> tuple[list[str], list[str]] | None:
        """Splits texts at all of the strings, many times as fast as `find` finds them.

        >>> StringSet(["<s>", "!"]).split(["a!b<s>", "c"])
        (['a', 'b', '', 'c'], ['!', '<s>', '', ''])

        Returns:
            The sections, and the string after each: an empty one if it is the last section of its text. None if the
            texts contain none of the strings, or if they contain the control character that joins them here.
        """
        joined = self._separator.join(texts)
        if self._is_empty or not self._pattern.search(joined) or joined.count(self._separator) >= len(texts):
            return None
        parts = self._split.split(joined)
        strings = ["" if string == self._separator else string for string in parts[1::2]]
        return parts[::2], [*strings, ""]

    def positions(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """Returns the positions of the strings, ascending, by the index of the text. Texts without any are left out."""
        positions: dict[int, list[int]] = {}
        for index, start, _ in self.find(texts):
            positions.setdefault(index, []).append(start)
        return positions


class Literals:
    """A set of added tokens that are searched for together: all on the text as it is, or all on the normalized text.

    Args:
        tokens: The entries of `added_tokens` in the `tokenizer.json`, with the content that is searched for.
        ignored: Contents that are plain text. They still hide tokens that they overlap with.
    """

    def __init__(self, tokens: Sequence[Mapping] = (), ignored: Collection[str] = ()):
        self._tokens = {token["content"]: token for token in tokens}
        self._ignored = frozenset(ignored)
        matched = self._tokens.keys() - self._ignored
        self._strings = StringSet(self._tokens if matched else ())
        plain = not any(token[key] for token in tokens for key in ("single_word", "lstrip", "rstrip"))
        self._ids = {"": -1, **{token["content"]: token["id"] for token in tokens}} if plain else None

    def __bool__(self) -> bool:
        return bool(self._strings)

    def find(self, texts: Sequence[str]) -> tuple[dict[int, list[TokenSpan]], list[int]]:
        """Finds the tokens in a batch of texts.

        Returns:
            The spans of the tokens by the index of the text, without texts that contain none; and the indices of the
            texts in which this class cannot determine them.
        """
        spans: dict[int, list[TokenSpan]] = {}
        undetermined: list[int] = []
        for index, start, content in self._strings.find(texts):
            if content in self._ignored or (undetermined and undetermined[-1] == index):
                continue
            span = self._span(texts[index], start, content, spans.get(index))
            if span is None:
                undetermined.append(index)
                spans.pop(index, None)
            else:
                spans.setdefault(index, []).append(span)
        return spans, undetermined

    def split(self, texts: Sequence[str]) -> Sections | None:
        """Cuts texts at the tokens in them, as `cut_at` does, but several times as fast.

        Returns:
            None if the texts contain neither tokens nor ignored contents, or if this class cannot find them.
        """
        split_texts = None if self._ids is None else self._strings.split(texts)
        if split_texts is None:
            return None
        parts, contents = split_texts
        if not self._ignored.isdisjoint(contents):
            parts, contents = _merge_ignored(self._ignored, parts, contents)
        ids = np.fromiter(map(self._ids.__getitem__, contents), np.int64, len(contents))
        return Sections.from_parts(parts, ids, ids < 0)

    def _span(
        self, text: str, start: int, content: str, previous: list[TokenSpan] | None
    ) -> TokenSpan | None:
        """Returns the span of a token, or None if `tokenizers` has rules for it that are not implemented here."""
        token = self._tokens[content]
        previous_end = previous[-1][1] if previous else 0
        if token["single_word"] or start < previous_end:
            return None
        end = start + len(content)
        if token["lstrip"]:
            while start > previous_end and text[start - 1] in RUST_SPACE:
                start -= 1
        if token["rstrip"]:
            while end < len(text) and text[end] in RUST_SPACE:
                end += 1
        return start, end, token["id"]


def _merge_ignored(
    ignored: Collection[str], parts: Sequence[str], contents: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Makes ignored strings part of the text again, and joins them with the sections around them.

    >>> _merge_ignored({"!"}, ["a", "b", "c"], ["!", "<s>", ""])
    (['a!b', 'c'], ['<s>', ''])
    """
    joined, remaining, text = [], [], ""
    for part, content in zip(parts, contents, strict=True):
        if content in ignored:
            text += part + content
        else:
            joined.append(text + part)
            remaining.append(content)
            text = ""
    return joined, remaining


def trie_pattern(strings: Collection[str]) -> str:
    """Returns a pattern that matches the longest of the strings at a position, in a time independent of their number.

    >>> trie_pattern(["<s>", "<sep>", "no", "none"])
    '(?:<s(?:>|ep>)|no(?:ne)?)'
    """
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
