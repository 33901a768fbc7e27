"""Rendering a chat template with gaps where it writes the texts of messages.

Templates rarely look into a message's text: they ask whether it is empty or contains "</think>", strip it, and write
it. A `GapText` stands for such a text. It notes these questions with the answers, and refuses everything else. So what
is rendered applies to all conversations in which the answers are the same.

The operations that would read the characters of a string past its methods (filters, tests, functions, `in`) are those
that `GapSandbox` refuses, unless they are known not to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.compiler import Frame
from jinja2.runtime import Context, Macro, Undefined
from markupsafe import Markup

from beam_pipeline.conversations.sandbox import (
    OF_JINJA,
    Generator,
    SafeNamespace,
    Sandbox,
    make_dict,
    owner_of,
    raise_exception,
)

_FILTERS = frozenset(
    ("count", "d", "default", "first", "items", "last", "length", "list", "reverse", "string")
)
_FILTERS_OF_PLAIN_ARGUMENTS = frozenset(("rejectattr", "selectattr", "trim"))
_TESTS = frozenset(
    ("!=", "==", "boolean", "callable", "defined", "eq", "equalto", "false", "float", "integer")
)
_TESTS |= {"mapping", "ne", "none", "number", "string", "true", "undefined"}
_METHODS = ("strip", "lstrip", "rstrip", "startswith", "endswith")
_READ = chr(0xFFFFE)
"""A noncharacter in the stand-ins, which shows where they were read after all."""
STAND_INS = (_READ, f"7\n{_READ} a")
"""What a text with gaps consists of. Both must give the same: else the template depends on its characters."""


_PLAIN_TYPES = (
    *(str, int, float, complex, range, slice),
    *(jinja2.Environment, Context, nodes.EvalContext, Undefined, Macro),
)


class Refused(BaseException):
    """The template looks into a text. (Jinja's own code ignores some exceptions.)"""


class Field(NamedTuple):
    """The text of a message, perhaps stripped."""

    message: int
    key: str
    strips: tuple[tuple[str, str | None], ...] = ()
    """(the method, the characters)."""

    def of(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Returns the text in a conversation."""
        text = messages[self.message][self.key]
        for method, characters in self.strips:
            text = getattr(text, method)(characters)
        return text


class Question(NamedTuple):
    """What a template asks about a text, and the answer that it got."""

    field: Field
    method: str
    argument: Any
    answer: bool

    def has_same_answer(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Determines whether another conversation gives the same answer."""
        return getattr(self.field.of(messages), self.method)(self.argument) == self.answer


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise Refused


class GapText(str):
    """A text with gaps, or a field alone.

    Args:
        stand_in: One of `STAND_INS`.
        parts: Strings, none of which is empty, and fields.
        value: The text of a field alone.
        questions: Where to note what is asked about it.
    """

    _parts: tuple[str | Field, ...]

    def __new__(
        cls,
        stand_in: str,
        parts: Sequence[str | Field],
        value: str = "",
        questions: list[Question] | None = None,
    ) -> GapText:
        self = super().__new__(cls, stand_in)
        self._parts, self._value, self._questions = tuple(parts), value, questions
        return self

    def __str__(self) -> str:
        return self

    def _field(self) -> Field:
        if self._questions is None:
            raise Refused
        [field] = self._parts
        return field

    def _ask(self, method: str, argument: Any) -> bool:
        field = self._field()
        if _has_gap(argument):
            raise Refused
        answer = getattr(self._value, method)(argument)
        if not isinstance(answer, bool):
            raise Refused
        self._questions.append(Question(field, method, argument, answer))
        return answer

    def _stripped(self, method: str, characters: str | None = None) -> GapText:
        field = self._field()
        if _has_gap(characters):
            raise Refused
        value = getattr(self._value, method)(characters)
        parts = [field._replace(strips=(*field.strips, (method, characters)))]
        return GapText(str.__str__(self), parts, value, self._questions)

    def strip(self, characters: str | None = None, /) -> GapText:
        return self._stripped("strip", characters)

    def lstrip(self, characters: str | None = None, /) -> GapText:
        return self._stripped("lstrip", characters)

    def rstrip(self, characters: str | None = None, /) -> GapText:
        return self._stripped("rstrip", characters)

    def startswith(self, prefix: str | tuple[str, ...], /) -> bool:  # type: ignore[override]
        return self._ask("startswith", prefix)

    def endswith(self, suffix: str | tuple[str, ...], /) -> bool:  # type: ignore[override]
        return self._ask("endswith", suffix)

    def __contains__(self, text: Any) -> bool:
        return self._ask("__contains__", text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self._ask("__eq__", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __bool__(self) -> bool:
        return self != ""

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    __getitem__ = __iter__ = __len__ = __hash__ = __repr__ = __format__ = __html__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


def concat(parts: Iterable[Any]) -> str:
    """Joins strings, and other values as strings."""
    strings = [part if isinstance(part, str) else str(part) for part in parts]
    filled = [string for string in strings if isinstance(string, GapText) or string]
    if len(filled) == 1:
        return filled[0]
    joined: list[str | Field] = []
    for string in filled:
        for part in parts_of(string):
            if joined and isinstance(part, str) and isinstance(joined[-1], str):
                joined[-1] += part
            else:
                joined.append(part)
    gap = next((string for string in filled if isinstance(string, GapText)), None)
    return "".join(joined) if gap is None else GapText(str.__str__(gap), joined)


def parts_of(text: str) -> tuple[str | Field, ...]:
    """Returns the strings and fields that a rendered text consists of."""
    return text._parts if isinstance(text, GapText) else (text,) if text else ()


def is_complete(parts: Sequence[str | Field]) -> bool:
    """Determines whether the text has no stand-in for characters that were read."""
    return not any(isinstance(part, str) and _READ in part for part in parts)


def _has_gap(value: Any) -> bool:
    if isinstance(value, GapText):
        return True
    if isinstance(value, Mapping):
        return any(map(_has_gap, value.keys())) or any(map(_has_gap, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_has_gap, value))
    return not (value is None or isinstance(value, _PLAIN_TYPES))  # an iterator, a view …


def _without_gaps(function: Callable[..., Any], unchecked: int = 0) -> Callable[..., Any]:
    """Returns a filter or test that refuses gaps in its arguments after the first `unchecked` ones."""
    if hasattr(function, "jinja_pass_arg"):
        unchecked += bool(unchecked)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if _has_gap(args[unchecked:]) or _has_gap(kwargs):
            raise Refused
        return _plain(function(*args, **kwargs))

    return checked


def _plain(value: Any) -> Any:
    """Returns a value; if it is a string, without a type of its own, which would hide a gap that it is joined to."""
    if isinstance(value, Markup):
        raise Refused
    return str.__str__(value) if isinstance(value, str) and not isinstance(value, GapText) else value


class _Generator(Generator):
    """Asks `GapSandbox.contains` for the operator `in`, since strings look into each other."""

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        operators = [operand.op for operand in node.ops]
        if not {"in", "notin"}.intersection(operators):
            super().visit_Compare(node, frame)
        elif len(operators) > 1:
            raise Refused
        else:
            self.write("(not " if operators == ["notin"] else "(")
            self.write("environment.contains(")
            self.visit(node.ops[0].expr, frame)
            self.write(", ")
            self.visit(node.expr, frame)
            self.write("))")


class GapSandbox(Sandbox):
    """The environment of a chat template whose messages have gaps. Its operations raise Refused."""

    code_generator_class = _Generator
    concat = staticmethod(concat)
    mark_generation = staticmethod(str)
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.filters = {
            name: function
            if name in _FILTERS
            else _without_gaps(function, unchecked=name in _FILTERS_OF_PLAIN_ARGUMENTS)
            for name, function in self.filters.items()
        }
        self.tests = {
            name: function if name in _TESTS else _without_gaps(function)
            for name, function in self.tests.items()
        }

    def contains(self, container: Any, item: Any) -> bool:
        """Returns what the operator `in` would."""
        if isinstance(item, GapText) and isinstance(container, str):
            raise Refused
        return item in container

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Returns what an arithmetic operator would."""
        if operator != "+" and (_has_gap(left) or _has_gap(right)):
            raise Refused
        return _plain(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Returns an item or an attribute."""
        if isinstance(argument, GapText):
            raise Refused
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __function: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a function."""
        owner = owner_of(__function)
        if isinstance(owner, GapText):
            is_known = __function.__name__ in _METHODS
        elif isinstance(__function, Macro) or __function in (SafeNamespace, make_dict, raise_exception):
            is_known = True
        else:
            named = [value for name, value in kwargs.items() if name not in OF_JINJA]
            is_known = not (_has_gap(args) or _has_gap(named))
        if not is_known:
            raise Refused
        return _plain(super().call(__context, __function, *args, **kwargs))
