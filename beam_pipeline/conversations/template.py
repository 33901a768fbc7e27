"""Chat templates: Jinja programs that write a conversation as text, rendered as transformers does."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.meta

from beam_pipeline.conversations.gaps import (
    STAND_INS,
    Field,
    GapSandbox,
    GapText,
    Question,
    Refused,
    is_complete,
    parts_of,
)
from beam_pipeline.conversations.sandbox import Sandbox
from beam_pipeline.conversations.traced import TOOLS, message_mark, trace
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
    AssertionError,
    RuntimeError,
    MemoryError,
)


class RenderingError(Exception):
    """The template refuses a conversation, or fails. The message is one line."""


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
        environment = Sandbox(date)
        try:
            asked = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
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
        self._source, self._date = source, date
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
            text = self._run(
                self._template,
                messages,
                lambda number, _, value: trace(value, message_mark(number)),
                tools=None if tools is None else trace(list(tools), TOOLS),
                add_generation_prompt=add_generation_prompt,
            )
            str.__str__(text).encode()  # half of a surrogate pair, which the template wrote, is no text
        except _ERRORS as error:
            raise RenderingError(one_line(error)) from error
        return text

    def render_with_gaps(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[tuple[str | Field, ...], list[Question]] | None:
        """Renders a conversation without the messages' texts.

        Args:
            messages: Each has a role and texts.

        Returns:
            The strings that the template writes, with fields where it writes a text, and what it asks about the texts.
            None if it looks into them in another way, or fails.
        """
        template = self._template_with_gaps
        if template is None:
            return None
        first, second = (self._with_gaps(template, messages, stand_in) for stand_in in STAND_INS)
        return first if first == second else None

    def _with_gaps(
        self, template: jinja2.Template, messages: Sequence[Mapping[str, str]], stand_in: str
    ) -> tuple[tuple[str | Field, ...], list[Question]] | None:
        questions: list[Question] = []
        try:
            text = self._run(
                template,
                messages,
                lambda number, key, value: GapText(stand_in, [Field(number, key)], value, questions),
            )
        except (Refused, *_ERRORS):
            return None
        parts = parts_of(text)
        return (parts, questions) if is_complete(parts) else None

    def _run(
        self,
        template: jinja2.Template,
        messages: Sequence[Mapping[str, Any]],
        convert: Callable[[int, str, Any], Any],
        *,
        tools: Any = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Runs a template. `convert` gets a message's number, a key other than the role's, and the value."""
        return template.render(
            messages=[
                _message(message, functools.partial(convert, number))
                for number, message in enumerate(messages)
            ],
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._variables,
        )

    @functools.cached_property
    def _template_with_gaps(self) -> jinja2.Template | None:
        try:
            return GapSandbox(self._date).from_string(self._source)
        except Refused:
            return None

    def generation_prompt(self) -> str:
        """Returns the text that precedes what the model generates; empty if the template has none."""
        messages = [{"role": "user", "content": "a"}]
        try:
            without, with_prompt = (self.render(messages, add_generation_prompt=add) for add in (False, True))
        except RenderingError:
            return ""
        return with_prompt[len(without) :] if with_prompt.startswith(without) else ""


def _message(message: Mapping[str, Any], convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Returns what a template gets of a message. `convert` returns the value of a key other than the role's."""
    given = {
        key: value if key == "role" else convert(key, value)
        for key, value in message.items()
        if value is not None
    }
    reasoning = next((given[key] for key in REASONING_KEYS if key in given), None)
    if reasoning is not None:
        given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
    return given
