"""The characters of a rendered conversation that are targets of the loss."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """What it writes before one, after which a model generates. Empty if it writes nothing."""
    header: str
    """The part of it that is before every message. (The prompt may go on, for example with <think>.)"""
    opening: str | None
    """The control token with which the prompt begins. None if there is none."""
    end: str | None
    """The control token that ends a message. None if there is none."""


class _Run(NamedTuple):
    """Consecutive characters of a message, and what the template wrote between them."""

    message: int
    start: int
    end: int
    is_copy: bool
    """Whether it is after the message's turn: a template may write a call's name into the header of the answer."""
    limit: int | None = None
    """Where the header of another's turn begins after it, if a copy follows."""


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
    in_generation = marks >= GENERATION
    messages = marks & (GENERATION - 1)
    if in_generation.any():
        return _in_generation(in_generation, messages, trained)
    targets = np.zeros(len(text), bool)
    starts = [span.start for span in controls]
    runs = list(_runs(text, messages, turn))
    for number, run in enumerate(runs):
        if run.message not in trained:
            continue
        before = runs[number - 1].end if number else 0
        after = run.limit or (runs[number + 1].start if number + 1 < len(runs) else len(text))
        first = run.start
        for header in (turn.prompt, turn.header):
            place = text.rfind(header, before, run.start) if header else -1
            if place >= 0:
                first = place + len(header)
                break
        else:
            if run.is_copy:
                continue
        following = controls[bisect_left(starts, run.end) : bisect_left(starts, after)]
        targets[first : _end_of_turn(following, run.end, turn)] = True
    return targets


def _in_generation(in_generation: np.ndarray, messages: np.ndarray, trained: Collection[int]) -> np.ndarray:
    targets = np.zeros(len(messages), bool)
    edges = np.flatnonzero(np.diff(in_generation, prepend=False, append=False))
    for start, end in edges.reshape(-1, 2).tolist():
        owners = messages[start:end]
        places = np.flatnonzero(owners != ord(TEMPLATE))
        if len(places):
            # What the template writes belongs to the message before it, or at first to the one after it.
            previous = np.searchsorted(places, np.arange(len(owners)), side="right") - 1
            owners = owners[places[np.maximum(previous, 0)]]
            targets[start:end] = np.isin(owners.astype(np.int64) - 1, list(trained))
    return targets


def _runs(text: str, messages: np.ndarray, turn: TurnMarks) -> Iterator[_Run]:
    """Yields the runs of all messages, in their order. A header of another's turn ends one."""
    places = np.flatnonzero(messages != ord(TEMPLATE))
    if not len(places):
        return
    owners = messages[places].astype(np.int64) - 1
    is_first = np.diff(owners, prepend=-1) != 0
    is_first[0] = True
    pieces = np.flatnonzero(is_first | (np.diff(places, prepend=-1) > 1))
    ends = places[np.append(pieces[1:], len(places)) - 1] + 1
    run: _Run | None = None
    for index, end in zip(pieces.tolist(), ends.tolist(), strict=True):
        message, start = int(owners[index]), int(places[index])
        if run is not None and not is_first[index]:
            opened = text.find(turn.opening, run.end, start) if turn.opening else -1
            if opened < 0 or text.startswith(turn.header, opened):
                run = run._replace(end=end)
                continue
            run = run._replace(limit=opened)
        if run is not None:
            yield run
        run = _Run(message, start, end, is_copy=not is_first[index])
    if run is not None:
        yield run


def _end_of_turn(following: Sequence[ControlSpan], end: int, turn: TurnMarks) -> int:
    """Returns the end of the control token that ends a message's turn, or `end` if none follows."""
    if turn.end is None:
        return end
    return next(
        (span.end for span in following if span.text == turn.end), following[0].end if following else end
    )
