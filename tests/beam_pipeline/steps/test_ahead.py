"""Items that are computed ahead: the same ones, errors in their place, and no thread left behind."""

import threading
from collections.abc import Iterator

import pytest

from beam_pipeline.steps.ahead import ahead


def numbers(count: int, log: list[int] | None = None) -> Iterator[int]:
    for number in range(count):
        if log is not None:
            log.append(threading.get_ident())
        yield number


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_same_items_in_order(threads, count):
    with ahead(numbers(count), threads=threads) as items:
        assert list(items) == list(range(count))


def test_another_thread_computes_the_items():
    log = []
    with ahead(numbers(3, log), threads=2) as items:
        list(items)
    assert threading.get_ident() not in log


def test_at_most_two_items_ahead():
    log = []
    with ahead(numbers(100, log), threads=2) as items:
        for number in items:
            assert len(log) <= number + 3  # one is waiting, one is being computed


@pytest.mark.parametrize("threads", [1, 2])
def test_error_comes_after_the_items_before_it(threads):
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("the second item")

    with ahead(failing(), threads=threads) as items:
        assert next(items) == 1
        with pytest.raises(ValueError, match="the second item"):
            next(items)


def test_no_thread_is_left_if_the_caller_fails():
    before = threading.active_count()
    with pytest.raises(OSError, match="disk full"), ahead(numbers(1000), threads=2) as items:
        next(items)
        raise OSError("disk full")
    assert threading.active_count() == before


def test_nested_iterators_end_if_the_caller_fails():
    before = threading.active_count()
    with (
        pytest.raises(OSError, match="disk full"),
        ahead(numbers(1000), threads=2) as inner,
        ahead((number * 2 for number in inner), threads=2) as outer,
    ):
        assert [next(outer), next(outer)] == [0, 2]
        raise OSError("disk full")
    assert threading.active_count() == before
