"""Copies of a step in threads."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from beam_pipeline.support.copies import outputs_in_order


def test_outputs_are_in_the_order_of_the_elements_whichever_is_ready_first() -> None:
    second_is_done, made = threading.Event(), []

    def make_process():
        made.append(threading.get_ident())

        def process(element: int) -> Iterator[int]:
            if element == 0:
                assert second_is_done.wait(10)
            if element == 1:
                second_is_done.set()
            yield from (element, -element)

        return process

    outputs = list(outputs_in_order(range(50), make_process, copies=3))
    assert outputs == [sign * element for element in range(50) for sign in (1, -1)]
    assert len(set(made)) == len(made) <= 3
    assert list(outputs_in_order([], make_process, copies=2)) == []


@pytest.mark.parametrize("failing", [0, 3])
def test_an_error_comes_after_the_outputs_before_it_and_ends_the_threads(failing: int) -> None:
    taken = []

    def process(element: int) -> list[int]:
        taken.append(element)
        if element == failing:
            raise ValueError(f"element {element}")
        return [element]

    outputs = outputs_in_order(itertools.count(), lambda: process, copies=2)
    assert [next(outputs) for _ in range(failing)] == list(range(failing))
    before = threading.active_count()
    with pytest.raises(ValueError, match=f"element {failing}"):
        next(outputs)
    assert threading.active_count() <= before and len(taken) >= failing


def test_an_error_of_the_elements_is_raised() -> None:
    def elements() -> Iterator[int]:
        yield 1
        raise OSError("the list of units is gone")

    outputs = outputs_in_order(elements(), lambda: lambda element: [element], copies=2)
    assert next(outputs) == 1
    with pytest.raises(OSError, match="the list of units is gone"):
        next(outputs)


def test_threads_end_with_the_reader() -> None:
    before = threading.active_count()
    outputs = outputs_in_order(itertools.count(), lambda: lambda element: [element], copies=2)
    assert next(outputs) == 0
    outputs.close()
    assert threading.active_count() == before
