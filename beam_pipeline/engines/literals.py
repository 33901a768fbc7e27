"""Finding added tokens in texts, as `tokenizers` does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from beam_pipeline.native.library import rows_library
from beam_pipeline.native.literals import Option, StringFinder
from beam_pipeline.support.texts import Texts

_OPTIONS = {"lstrip": Option.LSTRIP, "rstrip": Option.RSTRIP, "single_word": Option.SINGLE_WORD}


@dataclass(frozen=True)
class Spans:
    """Added tokens in texts, from left to right, and the texts that they are in.

    >>> tokens = [{"id": 1, "content": "<s>", "lstrip": False, "rstrip": False, "single_word": False}]
    >>> spans = Literals(tokens).find(Texts.of(["ab<s>c", "d", "<s>"]))
    >>> spans.owners.tolist(), list(spans.sections), spans.before.tolist()
    ([0, 2], ['ab', 'c', 'd', '', ''], [0, 3])
    """

    texts: Texts
    owners: np.ndarray
    """int64 [tokens], ascending: the index of each token's text."""
    starts: np.ndarray
    """int64 [tokens]: where each token begins among the bytes of the texts. White space may belong to it."""
    ends: np.ndarray
    """int64 [tokens]"""
    ids: np.ndarray
    """uint32 [tokens]"""
    unclear: np.ndarray
    """int64 [texts], ascending: the indices of the texts in which it is unclear where the tokens are."""

    @property
    def sections(self) -> Texts:
        """A section, which may be empty, before each token and at the end of each text."""
        counts = self.counts
        last = np.cumsum(counts) - 1
        starts, ends = np.empty((2, len(self.owners) + len(counts)), np.int64)
        starts[last - counts + 1] = self.texts.starts
        starts[self.before + 1] = self.ends
        ends[last] = self.texts.ends
        ends[self.before] = self.starts
        return Texts(self.texts.data, starts, ends)

    @property
    def before(self) -> np.ndarray:
        """int64 [tokens]: the index of the section before each token."""
        return np.arange(len(self.owners)) + self.owners

    @property
    def counts(self) -> np.ndarray:
        """int64 [texts]: the number of each text's sections."""
        return np.bincount(self.owners, minlength=len(self.texts)) + 1


class StringSet:
    """A set of strings, and a fast search for them in a batch of texts."""

    def __init__(self, strings: Collection[str]):
        self._pattern = re.compile(trie_pattern(strings))
        chars = set("".join(strings))
        self._separator = next(char for char in map(chr, range(0x110000)) if char not in chars)
        self._is_empty = not strings

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


class Literals:
    """A set of added tokens that are searched for together: all on the text as it is, or all on the normalized text.

    Args:
        tokens: The entries of `added_tokens` in the `tokenizer.json`, with the content that is searched for.
        ignored: Contents that are plain text. They still hide tokens that they overlap with.
    """

    def __init__(self, tokens: Sequence[Mapping] = (), ignored: Collection[str] = ()):
        self._tokens = {token["content"]: token for token in tokens}
        self._ignored = frozenset(ignored)
        self.contents = [content for content in self._tokens if content not in self._ignored]
        """The contents that are not ignored."""
        library = rows_library()
        if library and self.contents:  # an engine that needs no compiler asks only for the contents
            self._finder = StringFinder(library, {content: self._option(content) for content in self._tokens})
            ids = [self._tokens[content]["id"] for content in self._finder.strings]
            self._ids = np.array(ids, np.uint32)

    def find(self, texts: Texts) -> Spans:
        """Finds the tokens in texts, by compiled code."""
        if not self.contents:
            none = np.empty(0, np.int64)
            return Spans(texts, none, none, none, none.astype(np.uint32), none)
        owners, starts, ends, numbers = self._finder.find(texts)
        return Spans(texts, owners, starts, ends, self._ids[numbers], owners[numbers < 0])

    def _option(self, content: str) -> Option:
        if content in self._ignored:
            return Option.IGNORED
        return sum((option for name, option in _OPTIONS.items() if self._tokens[content][name]), Option(0))


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
