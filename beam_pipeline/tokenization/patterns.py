"""Regular expressions of pre-tokenizers, compiled to the instructions of the native engine (native/splits.c).

The subset that tokenizers use: alternatives of sequences of classes of characters, each with a greedy or possessive
quantifier; groups of alternatives, which may be optional; and lookahead for no character of a class. The instructions
match what Oniguruma matches. Which characters are in a class, Oniguruma decides: see `CharacterClass`.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, PreTokenizer, Punctuation, Split, WhitespaceSplit

from beam_pipeline.tokenization.tokenizer_json import UnsupportedComponent

NO_MAXIMUM = 2**31 - 1  # in splits.c, too
_MOST_CLASSES = _MOST_ALTERNATIVES = 32

# Where case is ignored, single characters match some sequences, such as "ß" for "ss", and the other way round. Groups
# do not separate a sequence. Classes with escapes, and repeated letters, may contain one.
_FOLDED = re.compile(r"ss|ff|fi|fl|st|[{\\]|[^\x00-\x7f]", re.IGNORECASE)
_GROUPING = re.compile(r"\(\?i?:|[()]")

_QUANTIFIER = re.compile(r"([?*+])(\+)?|\{([0-9]+)(?:(,)([0-9]*))?\}")
_CLASS_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|[sSdDwW]|[rntfv]|[^0-9A-Za-z])", re.DOTALL)


def literal(text: str) -> str:
    """Returns the regular expression that matches a text."""
    return "".join(char if char.isalnum() or char > "\x7f" else f"\\{char}" for char in text)


class Operation(IntEnum):
    """See `run` in splits.c."""

    RUN, POSSESSIVE_RUN, NOT_AHEAD, FORK, JUMP, END = range(6)


class Instruction(NamedTuple):
    """The arguments of FORK are the two instructions to go on with, that of JUMP the one."""

    operation: Operation
    classes: int = 0
    minimum: int = 0
    maximum: int = 0


class Alternative(NamedTuple):
    classes: int
    """A bit for each class of the characters with which it may begin."""
    start: int
    """Its first instruction."""
    optional: int = 0
    repeated: int = 0
    """If it is a character that may be missing, and one or more others, the bits of their classes."""


@dataclass(frozen=True)
class CharacterClass:
    """A set of characters."""

    kind: str
    """`regex`, or the type of a pre-tokenizer: `Digits`, `Punctuation` or `WhitespaceSplit`."""
    expression: str = ""
    """The regular expression, which matches one character."""

    def contains(self, characters: str) -> np.ndarray:
        """Asks `tokenizers` which of the characters are in the set, unless it is one character: bool [characters]."""
        if len(self.expression) == 1 and self.expression in (" ", re.escape(self.expression)):
            return np.array([char == self.expression for char in characters], bool)
        text = "a" + characters
        if self.kind == "Digits":  # runs of others and of digits in turn, since "a" is none
            runs = Digits(individual_digits=False).pre_tokenize_str(text)
            outside = [span for _, span in runs[::2]]
        else:
            outside = [span for _, span in self._without.pre_tokenize_str(text)]
        is_inside = np.ones(len(text), bool)
        for start, end in outside:
            is_inside[start:end] = False
        return is_inside[1:]

    @cached_property
    def _without(self) -> PreTokenizer:
        """The pre-tokenizer that removes the characters of the set. It takes a millisecond to make."""
        if self.kind == "Punctuation":
            return Punctuation("removed")
        return (
            WhitespaceSplit() if self.kind == "WhitespaceSplit" else Split(Regex(self.expression), "removed")
        )


@dataclass
class Program:
    """The compiled patterns of a tokenizer, which share their classes.

    The bit `1 << i` stands for `classes[i]`.
    """

    classes: list[CharacterClass] = field(default_factory=list)
    alternatives: list[Alternative] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)

    def add_pattern(self, pattern: str) -> int:
        """Compiles a regular expression. Returns the number of its alternatives, which are the last ones.

        Raises:
            UnsupportedComponent: If it has other constructs, or can match nothing.
        """
        try:
            branches = _Parser(pattern).parse()
        except RecursionError as error:
            raise UnsupportedComponent(f"the pattern {pattern}, with hundreds of nested groups") from error
        if len(branches) > _MOST_ALTERNATIVES:
            raise UnsupportedComponent(
                f"the pattern {pattern}, with more than {_MOST_ALTERNATIVES} alternatives"
            )
        for branch in branches:
            start = len(self.instructions)
            self._add_sequence(branch)
            self.instructions.append(Instruction(Operation.END))
            classes, may_be_empty = self._first(branch)
            if may_be_empty:
                raise UnsupportedComponent(f"the pattern {pattern}, which can match nothing")
            self.alternatives.append(Alternative(classes, start, *self._simple(start)))
        return len(branches)

    def add_run(self, kind: str, maximum: int) -> int:
        """Adds a run of up to `maximum` characters of a class, as the only alternative of a level."""
        classes = self._bit(CharacterClass(kind))
        start = len(self.instructions)
        self.instructions += [
            Instruction(Operation.POSSESSIVE_RUN, classes, 1, maximum),
            Instruction(Operation.END),
        ]
        self.alternatives.append(Alternative(classes, start, *self._simple(start)))
        return 1

    def _simple(self, start: int) -> tuple[int, int]:
        """Returns `optional` and `repeated` of the alternative with the last instructions, from `start` on."""
        *runs, _ = self.instructions[start:]
        if any(run.operation != Operation.POSSESSIVE_RUN for run in runs):
            return 0, 0
        if [run[2:] for run in runs] == [(0, 1), (1, NO_MAXIMUM)]:
            return runs[0].classes, runs[1].classes
        return (0, runs[0].classes) if [run[2:] for run in runs] == [(1, NO_MAXIMUM)] else (0, 0)

    def _bit(self, character_class: CharacterClass) -> int:
        if character_class not in self.classes:
            if len(self.classes) == _MOST_CLASSES:
                raise UnsupportedComponent(f"patterns with more than {_MOST_CLASSES} classes of characters")
            self.classes.append(character_class)
        return 1 << self.classes.index(character_class)

    def _add_sequence(self, nodes: Sequence[_Node], following: Sequence[_Node] = ()) -> None:
        """Compiles a sequence, which the nodes `following` follow in the pattern."""
        for index, node in enumerate(nodes):
            rest = [*nodes[index + 1 :], *following]
            if isinstance(node, _Run):
                never_shrinks = node.is_possessive or _never_shrinks(node, rest)
                operation = Operation.POSSESSIVE_RUN if never_shrinks else Operation.RUN
                bit = self._bit(node.character_class)
                self.instructions.append(Instruction(operation, bit, node.minimum, node.maximum))
            elif isinstance(node, _NotAhead):
                self.instructions.append(Instruction(Operation.NOT_AHEAD, self._bit(node.character_class)))
            else:
                self._add_group(node, rest)

    def _add_group(self, group: _Group, following: Sequence[_Node]) -> None:
        jumps = []
        for branch in group.branches:
            fork = len(self.instructions)
            self.instructions.append(Instruction(Operation.FORK))
            self._add_sequence(branch, following)
            jumps.append(len(self.instructions))
            self.instructions.append(Instruction(Operation.JUMP))
            self.instructions[fork] = Instruction(Operation.FORK, 0, fork + 1, len(self.instructions))
        if not group.is_optional:  # no branch matches: a class without characters
            self.instructions.append(Instruction(Operation.RUN, 0, 1, 1))
        for jump in jumps:
            self.instructions[jump] = Instruction(Operation.JUMP, 0, len(self.instructions))

    def _first(self, nodes: Sequence[_Node]) -> tuple[int, bool]:
        """Returns the classes with which a sequence may begin, and whether it may match nothing."""
        classes = 0
        for node in nodes:
            if isinstance(node, _Run):
                classes |= self._bit(node.character_class)
                if node.minimum:
                    return classes, False
            elif isinstance(node, _Group):
                firsts = [self._first(branch) for branch in node.branches]
                classes |= functools.reduce(operator.or_, (first for first, _ in firsts), 0)
                if not node.is_optional and not any(may_be_empty for _, may_be_empty in firsts):
                    return classes, False
        return classes, True


class _Run(NamedTuple):
    character_class: CharacterClass
    minimum: int
    maximum: int
    is_possessive: bool


class _NotAhead(NamedTuple):
    character_class: CharacterClass


class _Group(NamedTuple):
    branches: list[list[_Node]]
    is_optional: bool


_Node = _Run | _NotAhead | _Group


def _never_shrinks(run: _Run, rest: Sequence[_Node]) -> bool:
    """Determines whether a run that `rest` follows always matches as much as it can, so that it needs no backtracking.

    So it is if the rest can match nothing, or begins with a character that is not in the run's class.
    """
    if all(isinstance(node, _Run) and not node.minimum for node in rest):
        return True
    following = rest[0]
    if not isinstance(following, _Run) or not following.minimum:
        return False
    first, second = run.character_class, following.character_class
    for single, other in ((first, second), (second, first)):
        if len(single.expression) == 1 and single.expression != ".":
            return not other.contains(single.expression)[0]
    excluded, included = _members(first.expression), _members(second.expression)
    return "^" in excluded[:1] and bool(included) and {*included} <= {*excluded[1:]}


_MEMBER = re.compile(r"\\[pP]\{[^}]*\}|\\[sSdDwWrntfv]|[^\\\[\]^.&-](?:-[^\\\[\]])?")


def _members(expression: str) -> list[str]:
    """Returns the parts of a class; "^" first if it is the complement; nothing if it has others than the usual parts.

    >>> _members(r"[^\\r\\n\\p{L}0-9]"), _members(r"\\p{L}"), _members(r"[a-z&&[^b]]")
    (['^', '\\\\r', '\\\\n', '\\\\p{L}', '0-9'], ['\\\\p{L}'], [])
    """
    is_set = expression.startswith("[")
    inner = expression[1:-1] if is_set else expression
    members = ["^"] if is_set and inner.startswith("^") else []
    at = len(members)
    while at < len(inner):
        match = _MEMBER.match(inner, at)
        if match is None:
            return []
        members.append(match[0])
        at = match.end()
    return members


class _Parser:
    """Parses a regular expression of Oniguruma's (Ruby) syntax."""

    def __init__(self, pattern: str):
        self._pattern = pattern
        self._at = 0

    def parse(self) -> list[list[_Node]]:
        branches = self._branches(ignores_case=False)
        if self._at < len(self._pattern):
            raise self._unsupported()
        return branches

    def _unsupported(self) -> UnsupportedComponent:
        return UnsupportedComponent(f"the pattern {self._pattern} (at character {self._at})")

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _branches(self, *, ignores_case: bool) -> list[list[_Node]]:
        start = self._at
        branches: list[list[_Node]] = [[]]
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._take("|"):
                branches.append([])
            else:
                branches[-1].append(self._node(ignores_case))
        if ignores_case and _FOLDED.search(_GROUPING.sub("", self._pattern[start : self._at])):
            raise self._unsupported()
        return branches

    def _node(self, ignores_case: bool) -> _Node:
        if self._take("(?!"):
            node = _NotAhead(self._character_class(ignores_case))
            if not self._take(")"):
                raise self._unsupported()
            return node
        for opening, folds in (("(?:", False), ("(?i:", True), ("(", False)):
            if self._pattern.startswith("(?", self._at) and opening == "(":
                break
            if self._take(opening):
                branches = self._branches(ignores_case=ignores_case or folds)
                if not self._take(")"):
                    raise self._unsupported()
                is_optional = self._take("?")
                if self._quantifier() is not None:
                    raise self._unsupported()
                return _Group(branches, is_optional)
        character_class = self._character_class(ignores_case)
        return _Run(character_class, *(self._quantifier() or (1, 1, False)))

    def _character_class(self, ignores_case: bool) -> CharacterClass:
        start = self._at
        if self._take("["):
            depth = 1
            while depth:
                if self._at >= len(self._pattern):
                    raise self._unsupported()
                char = self._pattern[self._at]
                self._at += 2 if char == "\\" else 1
                depth += {"[": 1, "]": -1}.get(char, 0)
            expression = self._pattern[start : self._at]
        elif match := _CLASS_ESCAPE.match(self._pattern, self._at):
            self._at = match.end()
            expression = match[0]
        elif self._at < len(self._pattern) and self._pattern[self._at] not in r"\()|?*+{}^$":
            self._at += 1
            expression = self._pattern[start]
        else:
            raise self._unsupported()
        if ignores_case:
            expression = f"(?i:{expression})"
        try:
            Regex(expression)
        except Exception as error:  # no subclass is raised
            # The class ends elsewhere, as that of "[]a]".
            raise self._unsupported() from error
        return CharacterClass("regex", expression)

    def _quantifier(self) -> tuple[int, int, bool] | None:
        match = _QUANTIFIER.match(self._pattern, self._at)
        if match is None:
            return None
        self._at = match.end()
        sign, possessive, least, comma, most = match.groups()
        if self._pattern[self._at : self._at + 1] in tuple("?+*{"):  # lazy, or a quantifier of a quantifier
            raise self._unsupported()
        if sign:
            minimum, maximum = {"?": (0, 1), "*": (0, NO_MAXIMUM), "+": (1, NO_MAXIMUM)}[sign]
            return minimum, maximum, possessive is not None
        minimum = int(least)
        maximum = minimum if not comma else int(most) if most else NO_MAXIMUM
        if not maximum or minimum > maximum:  # `{3,2}` is possessive
            raise self._unsupported()
        return minimum, maximum, False
