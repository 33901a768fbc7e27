"""Shapes of conversations: what a chat template writes around the messages' texts.

Conversations with the same roles and keys, and the same answers to what the template asks about their texts, differ in
these texts alone. So one of them is rendered by `gaps`, and the others are filled in, many times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from beam_pipeline.conversations.encoding import TokenLayout, TokenTargets
from beam_pipeline.conversations.gaps import Field, Question
from beam_pipeline.conversations.rendering import RenderedConversation
from beam_pipeline.conversations.template import ChatTemplate
from beam_pipeline.conversations.traced import GENERATION, TEMPLATE

_MOST_SHAPES = 4096
_MOST_PER_KEY = 8

Key = tuple[Any, ...]
"""What decides how a conversation is rendered, apart from its texts."""


@dataclass(frozen=True)
class FilledConversation:
    """A conversation as text, if this has only the control tokens that are expected."""

    text: str
    controls: list[tuple[int, str]]
    """Where the template's control tokens begin, and their texts."""
    layout: TokenLayout


@dataclass(frozen=True)
class Shape:
    """What a template writes around texts."""

    parts: tuple[str | Field, ...]
    questions: tuple[Question, ...]
    controls: tuple[tuple[int, int, str], ...]
    """The control tokens: the index of the part, the place in it, and the text."""
    layout: TokenLayout

    def fill(self, messages: Sequence[Mapping[str, str]]) -> FilledConversation | None:
        """Returns a conversation of this shape; None if it has another."""
        if not all(question.has_same_answer(messages) for question in self.questions):
            return None
        pieces = [part if isinstance(part, str) else part.of(messages) for part in self.parts]
        if not all(pieces):  # a message without text has no targets
            return None
        starts = [0, *accumulate(map(len, pieces))]
        controls = [(starts[part] + place, text) for part, place, text in self.controls]
        return FilledConversation("".join(pieces), controls, self.layout)


@dataclass
class _Known:
    """The shapes that were found for a key."""

    shapes: list[Shape] = field(default_factory=list)
    attempts: int = -1  # the first conversation only shows that the key occurs


class Shapes:
    """The shapes of the conversations so far.

    Args:
        template: The chat template.
        targets: Finds the layouts of tokens.
    """

    def __init__(self, template: ChatTemplate, targets: TokenTargets) -> None:
        self._template = template
        self._targets = targets
        self._known: dict[Key, _Known] = {}

    def fill(self, conversation: Mapping[str, Any]) -> FilledConversation | None:
        """Returns a conversation as text. None if it must be rendered."""
        known = self._known.get(_key(conversation))
        messages = conversation["messages"]
        for shape in known.shapes if known is not None else ():
            filled = shape.fill(messages)
            if filled is not None:
                return filled
        return None

    def learn(self, conversation: Mapping[str, Any], rendered: RenderedConversation) -> None:
        """Learns the shape of a conversation, if there have been others with the same roles and keys."""
        key = _key(conversation)
        if key is None or not rendered.is_plain or rendered.has_silent_answer:
            return
        known = self._known.get(key)
        if known is None:
            if len(self._known) < _MOST_SHAPES:
                self._known[key] = _Known()
            return
        known.attempts += 1
        if 0 <= known.attempts < _MOST_PER_KEY:
            shape = self._shape(conversation["messages"], rendered)
            if shape is not None:
                known.shapes.append(shape)

    def _shape(self, messages: Sequence[Mapping[str, str]], rendered: RenderedConversation) -> Shape | None:
        with_gaps = self._template.render_with_gaps(messages)
        layout = self._targets.layout(rendered)
        if with_gaps is None or layout is None or not layout.is_fixed:
            return None
        parts, questions = with_gaps
        controls = []
        start = 0
        spans = list(rendered.controls)
        for index, part in enumerate(parts):
            text = part if isinstance(part, str) else part.of(messages)
            end = start + len(text)
            marks = rendered.marks[start:end] % GENERATION
            targets = rendered.targets[start:end]
            if isinstance(part, str):
                is_as_traced = (marks == ord(TEMPLATE)).all()
                while spans and spans[0].end <= end:
                    span = spans.pop(0)
                    controls.append((index, span.start - start, span.text))
            else:
                is_as_traced = text and (marks == part.message + 1).all() and targets.all() == targets.any()
            if not is_as_traced or rendered.text[start:end] != text:
                return None
            start = end
        if spans or start != len(rendered.text):
            return None
        return Shape(parts, tuple(dict.fromkeys(questions)), tuple(controls), layout)


def _key(conversation: Mapping[str, Any]) -> Key | None:
    """Returns the key of a conversation. None if it has other values than texts."""
    if "tools" in conversation:
        return None
    messages = conversation["messages"]
    if not all(type(value) is str for message in messages for value in message.values()):
        return None
    return (conversation.get("prompt"), *((message["role"], *message) for message in messages))
