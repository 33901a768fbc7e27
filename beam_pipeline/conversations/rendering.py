"""Documents that are conversations → texts, with the control tokens and the targets in them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.control_spans import ControlFinder, ControlSpan
from beam_pipeline.conversations.targets import TurnMarks, target_characters, trained_messages
from beam_pipeline.conversations.template import ChatTemplate, RenderingError
from beam_pipeline.conversations.traced import marks_of


@dataclass(frozen=True)
class RenderedConversation:
    """A conversation as text."""

    text: str
    controls: list[ControlSpan]
    """The template's control tokens, in their order."""
    marks: np.ndarray = field(repr=False)
    """uint32 [characters]: see `traced`."""
    targets: np.ndarray = field(repr=False)
    """bool [characters]: which are targets."""
    is_plain: bool
    """Whether the tokenizer finds the same control tokens: no message spells one."""


class ConversationRenderer:
    """Renders conversations by a tokenizer's chat template.

    Args:
        chat: The tokenizer's format.
        finder: Finds its control tokens.

    Raises:
        UsageError: If a template is invalid.
    """

    def __init__(self, chat: ChatFormat, finder: ControlFinder) -> None:
        date = None if chat.date is None else datetime.date.fromisoformat(chat.date)
        self._templates = {
            name: ChatTemplate(source, chat.variables, date) for name, source in chat.templates.items()
        }
        self.template = self._templates["default"]
        """That of conversations without tools."""
        self._loss_on = chat.loss_on
        self._finder = finder

    @cached_property
    def turn(self) -> TurnMarks:
        """What the template writes around an assistant's message, as it does in a short conversation."""
        template = self.template
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            text = template.render(messages)
        except RenderingError:
            return TurnMarks(template.generation_prompt(), None)
        marks = marks_of(text)
        spans, _ = self._finder.spans(text, marks)
        answer = int(np.flatnonzero(marks)[-1]) if marks.any() else 0
        end = next((span.text for span in spans if span.start > answer), None)
        return TurnMarks(template.generation_prompt(), end)

    def render(self, document: str) -> RenderedConversation:
        """Renders a conversation.

        Args:
            document: JSON, as `sources.conversations` writes it.

        Raises:
            RenderingError: If the template refuses it.
        """
        conversation = orjson.loads(document)
        breaker = None
        if self._finder.spells_any(conversation):
            breaker = self._finder.breaker_for(document)
            if breaker is None:
                raise RenderingError(
                    "spells control tokens, and has all characters that could take them apart"
                )
            conversation = self._finder.broken(conversation, breaker)
        tools = conversation.get("tools")
        template = self._templates.get("tool_use", self.template) if tools else self.template
        text: str = template.render(conversation["messages"], tools)
        marks = marks_of(text)
        controls, mixed = self._finder.spans(text, marks)
        if breaker is not None and breaker in text:
            text, marks, controls = _without(breaker, text, marks, controls)
        return RenderedConversation(
            str.__str__(text),
            controls,
            marks,
            self._targets(text, marks, controls, conversation),
            is_plain=breaker is None and not mixed,
        )

    def _targets(
        self, text: str, marks: np.ndarray, controls: list[ControlSpan], conversation: Mapping[str, Any]
    ) -> np.ndarray:
        if self._loss_on == "all":
            return np.ones(len(text), bool)
        roles = [message["role"] for message in conversation["messages"]]
        trained = trained_messages(roles, conversation.get("prompt"), self._loss_on)
        return target_characters(text, marks, controls, trained=set(trained), turn=self.turn)


def check_templates(chat: ChatFormat) -> None:
    """Raises UsageError if a template is invalid."""
    ConversationRenderer(chat, ControlFinder(()))


def _without(
    breaker: str, text: str, marks: np.ndarray, controls: list[ControlSpan]
) -> tuple[str, np.ndarray, list[ControlSpan]]:
    """Returns a text without one character, and the marks and control tokens at their new places."""
    plain = str.__str__(text)
    kept = np.fromiter((character != breaker for character in plain), bool, len(plain))
    places = np.concatenate([[0], np.cumsum(kept)])
    moved = [ControlSpan(int(places[span.start]), int(places[span.end]), span.text) for span in controls]
    return plain.replace(breaker, ""), marks[kept], moved
