"""The characters of a rendered conversation that are targets of the loss."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from beam_pipeline.conversations.control_spans import ControlSpan
from beam_pipeline.conversations.traced import GENERATION, TEMPLATE

LossOn = Literal["assistant", "completion", "last_assistant", "all"]


def trained_messages(roles: Sequence[str], prompt: int | None, loss_on: LossOn) -> list[int]:
    """Returns the numbers of the messages that are targets.

    >>> trained_messages(["user", "assistant", "user", "assistant", "tool", "assistant"], None, "completion")
    [3, 5]

    Args:
        roles: The messages' roles.
        prompt: The number of messages of the prompt, if the record divides them; None: all up to the last of a user.
        loss_on: The option.
    """
    assistants = [number for number, role in enumerate(roles) if role == "assistant"]
    if loss_on == "last_assistant":
        return assistants[-1:]
    if loss_on == "completion":
        if prompt is None:
            prompt = max((number + 1 for number, role in enumerate(roles) if role == "user"), default=0)
        return [number for number in assistants if number >= prompt]
    return assistants


@dataclass(frozen=True)
class TurnMarks:
    """What a template writes around the text of an assistant's message."""

    prompt: str
    """The header before it, after which a model generates. Empty if the template has none."""
    end: str | None
    """The control token that ends it. None if the template writes none."""


def target_characters(
    text: str,
    marks: np.ndarray,
    controls: Sequence[ControlSpan],
    *,
    trained: Collection[int],
    turn: TurnMarks,
) -> np.ndarray:
    """Returns which characters of the text are targets: bool [characters].

    If the template has `{% generation %}`, they are the characters within it. Otherwise, a message's targets begin
    after the template's header, since all that follows is generated, and end with the control token after the message:

        <|im_start|>user⏎ Hi<|im_end|>⏎<|im_start|>assistant⏎ Hello!<|im_end|>⏎
                                                             ^^^^^^^^^^^^^^^^

    Args:
        text: The rendered conversation.
        marks: uint32 [characters]: see `traced`.
        controls: The template's control tokens in the text, in their order.
        trained: The numbers of the messages that are targets.
        turn: What the template writes around an assistant's message.
    """
    targets = np.zeros(len(text), bool)
    in_generation = marks >= GENERATION
    messages = marks & (GENERATION - 1)
    if in_generation.any():
        edges = np.flatnonzero(np.diff(in_generation, prepend=False, append=False))
        for start, end in edges.reshape(-1, 2).tolist():
            owners = messages[start:end]
            owners = owners[owners > 0]
            targets[start:end] = len(owners) > 0 and int(owners[0]) - 1 in trained
        return targets
    # Where the text of each message begins and ends; characters of the template have the mark 0.
    places = np.flatnonzero(messages != ord(TEMPLATE))
    owners = messages[places]
    firsts = np.flatnonzero(np.diff(owners, prepend=0))
    lasts = np.append(firsts[1:], len(places)) - 1
    runs = [
        (int(owners[first]) - 1, int(places[first]), int(places[last]) + 1)
        for first, last in zip(firsts, lasts, strict=True)
    ]
    for number, (message, start, end) in enumerate(runs):
        if message not in trained:
            continue
        before = runs[number - 1][2] if number else 0
        after = runs[number + 1][1] if number + 1 < len(runs) else len(text)
        header = text.rfind(turn.prompt, before, start) if turn.prompt else -1
        first = start if header < 0 else header + len(turn.prompt)
        targets[first : _end_of_turn(controls, end, after, turn.end)] = True
    return targets


def _end_of_turn(controls: Sequence[ControlSpan], end: int, after: int, token: str | None) -> int:
    """Returns the end of the control token that ends a message's turn, or `end` if there is none before `after`."""
    if token is None:
        return end
    following = [span for span in controls if end <= span.start and span.end <= after]
    return next(
        (span.end for span in following if span.text == token), following[0].end if following else end
    )
