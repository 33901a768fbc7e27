"""Chat templates: Jinja programs that write a conversation as text, rendered as transformers does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from beam_pipeline.conversations.traced import (
    TOOLS,
    Traced,
    concat,
    first_mark,
    in_generation,
    message_mark,
    trace,
)
from beam_pipeline.support.errors import UsageError, one_line

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""A message's reasoning; transformers gives it to a template by the first two of these names."""
_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class RenderingError(Exception):
    """The template refuses a conversation, or fails. The message is one line."""


class _Generator(CodeGenerator):
    """Joins strings by `Environment.concat` also for the operator ~, which otherwise loses their marks."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} … {% endgeneration %}`, by which a template marks what the model generates."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        return in_generation(caller())


class _Namespace(Namespace):
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


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(concat)

    def __init__(self, date: datetime.date | None) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        self.filters |= {"tojson": _to_json, "join": _join, "format": _format}
        self.globals |= {"raise_exception": _raise, "namespace": _Namespace, "dict": _make_dict}
        if date is not None:
            self.globals["strftime_now"] = date.strftime

    def call(__self, __context: Any, __function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__function, "__self__", None)
        if type(owner) is str and __function.__name__ in ("join", "replace"):
            __function = getattr(Traced(owner), __function.__name__)
        return super().call(__context, __function, *args, **kwargs)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> Traced:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return Traced(text, first_mark(value) * len(text))


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, values: Any, separator: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        values = map(make_attrgetter(environment, attribute), values)
    return Traced.of(str(separator)).join(map(str, values))


def _format(template: str, *values: Any, **named: Any) -> str:
    return Traced.of(template) % (named or values)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _make_dict(*args: Any, **kwargs: Any) -> dict:
    return dict(*args, **kwargs)


class ChatTemplate:
    """A chat template in Jinja's immutable sandbox. Equal conversations give equal texts, whenever it is rendered.

    Args:
        source: The program.
        variables: The tokenizer's special tokens by name, e.g. eos_token.
        date: What `strftime_now` is told, which otherwise would be today; None: the template must not ask.

    Raises:
        UsageError: If it is no Jinja program, or it asks for the date.
    """

    def __init__(self, source: str, variables: Mapping[str, str], date: datetime.date | None = None) -> None:
        environment = _Environment(date)
        try:
            asked = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            place = f", line {line}" if line else ""
            raise UsageError(
                f"the chat template{place}: is not a Jinja program: {one_line(error)}"
            ) from error
        if date is None and "strftime_now" in asked:
            raise UsageError(
                "the chat template writes today's date, so every day would give another dataset; fix the date with "
                "--chat_date YYYY-MM-DD"
            )
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Returns the text of a conversation, with the marks of its characters if it is traced.

        Args:
            messages: Each with a role. All other values are traced to the message.
            tools: Descriptions of tools.
            add_generation_prompt: Whether to end with the header of an assistant's message.

        Raises:
            RenderingError: If the template fails.
        """
        try:
            text = self._template.render(
                messages=[_traced_message(message, number) for number, message in enumerate(messages)],
                tools=None if tools is None else trace(list(tools), TOOLS),
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except _ERRORS as error:
            raise RenderingError(one_line(error)) from error
        return text

    def generation_prompt(self) -> str:
        """Returns the text that precedes what the model generates; empty if the template has none."""
        messages = [{"role": "user", "content": "a"}]
        try:
            without, with_prompt = (self.render(messages, add_generation_prompt=add) for add in (False, True))
        except RenderingError:
            return ""
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""


def _traced_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    mark = message_mark(number)
    traced = {
        key: value if key == "role" else trace(value, mark)
        for key, value in message.items()
        if value is not None
    }
    reasoning = next((traced[key] for key in REASONING_KEYS if key in traced), None)
    if reasoning is not None:
        traced = {"thinking": reasoning, **traced, "reasoning_content": reasoning}
    return traced
