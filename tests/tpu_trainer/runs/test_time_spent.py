"""Each second of a run belongs to one kind, over all of its processes."""

from __future__ import annotations

import pytest

from tpu_trainer.runs.time_spent import KINDS, TimeSpent, goodput


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def known(seconds: dict[str, float]) -> dict[str, float]:
    assert tuple(seconds) == KINDS
    return {kind: value for kind, value in seconds.items() if value}


def test_nested_kinds_add_up_to_the_time() -> None:
    clock = Clock()
    spent = TimeSpent(clock)
    clock.seconds += 4
    spent.enter("compile")
    clock.seconds += 8
    with spent.on("evaluation"):
        clock.seconds += 16
        with spent.on("checkpoint"):
            clock.seconds += 32
        clock.seconds += 64
    spent.enter("step")
    clock.seconds += 128
    spent.move(3, "step", "input")
    expected = {"start": 4, "compile": 8, "evaluation": 80, "checkpoint": 32, "step": 125, "input": 3}
    assert known(spent.seconds()) == expected
    assert spent.training_seconds() == 128
    assert goodput(spent.seconds()) == pytest.approx(125 / 252)
    assert goodput(dict.fromkeys(KINDS, 0.0)) is None


def test_what_a_killed_process_repeats_is_lost_over_several_restarts() -> None:
    saved = {"start": 10, "compile": 20, "step": 100, "input": 5}
    last = {"start": 10, "compile": 20, "step": 130, "input": 6, "evaluation": 7}
    second = TimeSpent(Clock())
    second.continue_from(saved, last)
    assert known(second.seconds()) == {"start": 10, "compile": 20, "step": 100, "input": 5, "lost": 38}
    # The second process is killed, too, before it saves: the third continues from the same checkpoint.
    last = second.seconds() | {"start": 15, "compile": 30, "step": 150}
    third = TimeSpent(Clock())
    third.continue_from(saved, last)
    assert known(third.seconds()) == {"start": 15, "compile": 30, "step": 100, "input": 5, "lost": 88}
    # Without a checkpoint, all steps are lost.
    other = TimeSpent(Clock())
    other.continue_from({}, {"start": 1, "step": 9})
    assert known(other.seconds()) == {"start": 1, "lost": 9}
    # After an end on request, the checkpoint is newer than the last record.
    other = TimeSpent(Clock())
    other.continue_from({"start": 1, "step": 9}, {"start": 1, "step": 8})
    assert known(other.seconds()) == {"start": 1, "step": 9}
