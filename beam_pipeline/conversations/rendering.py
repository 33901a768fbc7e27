"""Documents that are conversations → texts, with the control tokens and the targets in them."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson

from beam_pipeline.conversations.chat_format import ChatFormat
from beam_pipeline.conversations.control_spans import ControlFinder, ControlSpan
from beam_pipeline.conversations.targets import TurnMarks, target_characters, trained_messages
from beam_pipeline.conversations.template import ChatTemplate, RenderingError
from beam_pipeline.conversations.traced import GENERATION, marks_of, message_mark

_STAND_INS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Noncharacters, one of which is for the text of messages that have none."""
_CALL = {"type": "function", "function": {"name": "b", "arguments": {"b": "b"}}}
_ANSWERS: tuple[dict[str, Any], ...] = ({"content": "b"}, {"tool_calls": [_CALL]})


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
    has_silent_answer: bool
    """Whether a message that is a target has no text."""


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
        """What the template writes around an assistant's message, as it does in short conversations."""
        prompt = self.template.generation_prompt()
        [controls] = self._finder.find([prompt])
        question = {"role": "user", "content": "a"}
        before, end = [], None
        for answer, next_turn in itertools.product(_ANSWERS, ([], [question])):
            try:
                text = self.template.render([question, {"role": "assistant", **answer}, *next_turn])
                marks = marks_of(text)
                spans, _ = self._finder.spans(text, marks)
            except RenderingError:
                continue
            places = np.flatnonzero(marks % GENERATION == ord(message_mark(1)))
            if not len(places):
                continue
            before.append(str.__str__(text)[: int(places[0])])
            if end is None and "content" in answer:
                end = next((span.text for span in spans if span.start > places[-1]), None)
        # It may end with a control token, or a line.
        cuts = {len(prompt), *(start + len(token) for start, token in controls)}
        cuts.update(place + 1 for place, character in enumerate(prompt) if character == "\n")
        headers = [prompt[:cut] for cut in sorted(cuts, reverse=True)]
        header = next((h for h in headers if h and all(h in text for text in before)), prompt)
        return TurnMarks(prompt, header, controls[0][1] if controls else None, end)

    def render(self, conversation: Mapping[str, Any]) -> RenderedConversation:
        """Renders a conversation.

        Args:
            conversation: A document of `sources.conversations`, parsed.

        Raises:
            RenderingError: If the template refuses it, or hides where it has the text of a message from.
        """
        breaker = None
        if self._finder.spells_any(conversation):
            breaker = self._finder.breaker_for(orjson.dumps(conversation).decode())
            if breaker is None:
                raise RenderingError(
                    "spells control tokens, and has all characters that could take them apart"
                )
            conversation = self._finder.broken(conversation, breaker)
        written = self._write(conversation, breaker)
        if breaker is not None and self._finder.is_escaped(breaker, written.text):
            raise RenderingError("spells a control token in a text whose characters the template escapes")
        targets, has_silent_answer = self._targets(written, conversation, breaker)
        return RenderedConversation(
            written.text,
            written.controls,
            written.marks,
            targets,
            is_plain=breaker is None and not written.is_mixed,
            has_silent_answer=has_silent_answer,
        )

    def _write(self, conversation: Mapping[str, Any], breaker: str | None) -> _Written:
        tools = conversation.get("tools")
        template = self._templates.get("tool_use", self.template) if tools else self.template
        text = template.render(conversation["messages"], tools)
        marks = marks_of(text)
        controls, is_mixed = self._finder.spans(text, marks)
        plain = str.__str__(text)
        if breaker is None or breaker not in plain:
            return _Written(plain, marks, controls, is_mixed)
        kept = _is_other(plain, breaker)
        places = np.concatenate([[0], np.cumsum(kept)])
        moved = [ControlSpan(int(places[span.start]), int(places[span.end]), span.text) for span in controls]
        return _Written(plain.replace(breaker, ""), marks[kept], moved, is_mixed)

    def _targets(
        self, written: _Written, conversation: Mapping[str, Any], breaker: str | None
    ) -> tuple[np.ndarray, bool]:
        """Returns which characters are targets, and whether a message that is a target has no text."""
        text = written.text
        if self._loss_on == "all":
            return np.ones(len(text), bool), False
        messages = conversation["messages"]
        roles = [message["role"] for message in messages]
        chosen = trained_messages(roles, conversation.get("prompt"), self._loss_on)
        trained = {number for number in chosen if messages[number].get("weight") != 0}
        silent = trained.difference((np.unique(written.marks % GENERATION).astype(np.int64) - 1).tolist())
        stand_in = next((character for character in _STAND_INS if character not in text), "")
        if silent and stand_in:
            # The end of its turn is a target nevertheless. A stand-in for its text shows where it is.
            filled = [
                {**message, "content": stand_in} if number in silent else message
                for number, message in enumerate(messages)
            ]
            try:
                with_stand_ins = self._write({**conversation, "messages": filled}, breaker)
            except RenderingError:
                with_stand_ins = written
            if with_stand_ins.text.replace(stand_in, "") == text:
                written = with_stand_ins
        targets = target_characters(
            written.text, written.marks, written.controls, trained=trained, turn=self.turn
        )
        return targets[_is_other(written.text, stand_in)] if silent else targets, bool(silent)


class _Written(NamedTuple):
    """What a template writes."""

    text: str
    marks: np.ndarray
    controls: list[ControlSpan]
    """The template's control tokens."""
    is_mixed: bool
    """Whether there are any others."""


def _is_other(text: str, character: str) -> np.ndarray:
    """Returns which characters are not this one: bool [characters]."""
    return np.fromiter((other != character for other in text), bool, len(text))


def check_templates(chat: ChatFormat) -> None:
    """Raises UsageError if a template is invalid."""
    ConversationRenderer(chat, ControlFinder(()))
