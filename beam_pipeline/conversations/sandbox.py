"""Jinja's immutable sandbox, as transformers has it for chat templates, with strings that keep their marks."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from beam_pipeline.conversations.traced import Traced, concat, in_generation, with_mark_of

OF_JINJA = {"_loop_vars", "_block_vars"}
"""Arguments that Jinja adds to calls."""


class Generator(CodeGenerator):
    """Joins strings by `Environment.concat` also for the operator ~, which otherwise loses their marks."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, by which a template marks what the model generates."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        environment: Sandbox = self.environment
        return environment.mark_generation(caller())


class SafeNamespace(Namespace):
    """Refuses names that begin with an underscore, as transformers does."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *args = args  # `namespace(self=…)` is allowed
        values = dict(*args, **values)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"the name {name!r} of a namespace begins with an underscore")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of a chat template.

    Args:
        date: What `strftime_now` is told; None: it is undefined.
    """

    code_generator_class = Generator
    concat = staticmethod(concat)
    mark_generation = staticmethod(in_generation)
    intercepted_binops = frozenset("%")

    def __init__(self, date: datetime.date | None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
        )
        filters = self.filters | {"tojson": _to_json, "join": _join, "format": _format}
        self.filters = {
            name: _keeping_marks(function) for name, function in filters.items() if name != "random"
        }
        del self.globals["lipsum"]  # as random: equal conversations would give other texts
        self.globals |= {"raise_exception": raise_exception, "namespace": SafeNamespace, "dict": make_dict}
        if date is not None:
            self.globals["strftime_now"] = date.strftime

    def call(__self, __context: Any, __function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = owner_of(__function)
        if type(owner) is str and __function.__name__ in ("join", "replace"):
            __function = getattr(Traced(owner), __function.__name__)
        elif type(owner) is str and __function.__name__ == "format" and not kwargs.keys() - OF_JINJA:
            text = substituted(owner, "{}", args)
            if text is not None:
                return text
        result = super().call(__context, __function, *args, **kwargs)
        return with_mark_of((owner, args, kwargs), result) if isinstance(owner, str) else result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Returns what an arithmetic operator would."""
        if operator == "%" and isinstance(left, str):
            return _format(left, *right) if isinstance(right, tuple) else _format(left, right)
        return super().call_binop(context, operator, left, right)


def owner_of(function: Callable[..., Any]) -> Any:
    """Returns the value whose method a function is; None if it is none. (Jinja wraps `str.format`.)"""
    return getattr(getattr(function, "__wrapped__", function), "__self__", None)


def _keeping_marks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a filter whose result, if it is a string that lost its marks, has the first mark of its arguments."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        is_argument = any(result is value for value in (*args, *kwargs.values()))
        return result if is_argument else with_mark_of((*args, kwargs), result)

    return marked


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, values: Any, separator: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    return Traced.of(str(separator)).join(map(str, values))


def _format(template: str, *values: Any, **named: Any) -> str:
    text = None if named else substituted(template, "%s", values)
    if text is None:
        given: Any = named or (values[0] if len(values) == 1 and isinstance(values[0], Mapping) else values)
        text = with_mark_of((template, given), str.__mod__(template, given))
    return text


def substituted(template: str, place: str, values: Sequence[Any]) -> str | None:
    """Returns a template with values at its places, all of which keep their marks.

    >>> substituted("<%s> %s", "%s", ["a", 1])
    '<a> 1'

    Args:
        template: The template.
        place: How it marks a place: %s or {}.
        values: The values.

    Returns:
        None if it has other places, or another number of them.
    """
    pieces = Traced.of(template).split(place)
    syntax = place.replace("s", "")
    if len(pieces) != len(values) + 1 or any(character in piece for piece in pieces for character in syntax):
        return None
    between = (part for pair in zip(values, pieces[1:], strict=True) for part in pair)
    return concat([pieces[0], *between])


def raise_exception(message: str) -> None:
    """Ends the rendering: the template refuses the conversation."""
    raise jinja2.TemplateError(message)


def make_dict(*args: Any, **kwargs: Any) -> dict:
    """The template's `dict`: a function, since the sandbox calls no types."""
    return dict(*args, **kwargs)
