"""Lists of rows: which rows a filter selects, and what a search reads."""

from __future__ import annotations

import itertools
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pytest

from beam_pipeline.browsing.filters import BadRequest, Filter
from beam_pipeline.browsing.opened import OpenSplit
from beam_pipeline.browsing.search import search
from beam_pipeline.browsing.selection import unit_runs
from beam_pipeline.views.reading import open_dataset


@pytest.fixture(scope="module")
def opened(dataset: Path) -> OpenSplit:
    return OpenSplit(open_dataset(str(dataset))[0])


def texts_of(opened: OpenSplit) -> list[str]:
    rows = opened.access.rows(range(len(opened.access)))
    return opened.split.decoder().texts([row.ids.tolist() for row in rows])


def run_search(opened: OpenSplit, *, most: int = 10**9, seconds: float = 1e9, clock=None, **parameters: str):
    wanted = Filter.parse(parameters)
    return search(
        selection=opened.selection(wanted.source, wanted.unit),
        access=opened.access,
        decoder=opened.split.decoder(),
        wanted=wanted,
        most=most,
        seconds=seconds,
        clock=clock or (lambda: 0.0),
    )


def test_rows_are_read_by_their_numbers_in_any_order(opened: OpenSplit):
    expected = [row for shard in range(len(opened.access.starts) - 1) for row in opened.split.rows(shard)]
    assert len(expected) == len(opened.access)
    numbers = [len(expected) - 1, 0, 299, 300, 0]
    for number, row in zip(numbers, opened.access.rows(numbers), strict=True):
        assert np.array_equal(row.ids, expected[number].ids) and row.padding == expected[number].padding
        shard, record = opened.access.place(number)
        assert np.array_equal(opened.split.row(shard, record).ids, row.ids)


def test_the_rows_of_all_units_are_all_rows_and_those_of_one_have_its_origin(opened: OpenSplit):
    units = len(opened.split.units)
    numbers = [set(opened.selection("", unit).numbers(0, 10**6).tolist()) for unit in range(units)]
    assert set.union(*numbers) == set(range(len(opened.access)))
    for number in range(0, len(opened.access), 7):
        origin = opened.split.origin(*opened.access.place(number))
        assert {unit for unit in range(units) if number in numbers[unit]} == {
            unit.index for unit in origin.units
        }


def test_a_selection_is_in_the_order_of_the_input_and_divides_into_pages(opened: OpenSplit):
    selection = opened.selection("corpus.txt", None)
    assert len(selection) == len(opened.access)
    whole = selection.numbers(0, 10**6).tolist()
    ranks = [opened.split.origin(*opened.access.place(number)).rank for number in whole[:40]]
    assert ranks == list(range(40))
    pages = [selection.numbers(first, 30).tolist() for first in range(0, len(selection), 30)]
    assert list(itertools.chain(*pages)) == whole
    assert len(selection.numbers(len(selection) + 5, 30)) == 0
    assert len(opened.selection("elsewhere", None)) == 0


def test_runs_of_neighbouring_units_are_one():
    rows, tails = np.array([4, 2, 0, 5, 0]), np.array([0, 0, 0, 0])
    assert unit_runs(rows, tails, [0, 1, 3], 8).tolist() == [[0, 11]]
    assert unit_runs(rows, tails, [0, 3], 8).tolist() == [[0, 4], [6, 11]]
    assert unit_runs(rows, tails, [2], 8).tolist() == []


def test_a_search_finds_every_row_with_the_text_once(opened: OpenSplit):
    texts = texts_of(opened)
    word = max(texts[100].replace("<", " ").split(), key=len)
    for parameters, expected in (
        ({"text": word, "case": "1"}, [n for n, text in enumerate(texts) if word in text]),
        ({"text": word.upper()}, [n for n, text in enumerate(texts) if word.lower() in text.lower()]),
    ):
        result = run_search(opened, **parameters)
        assert [match.number for match in result.matches] == expected != []
        assert (result.scanned, result.end) == (len(texts), len(texts))
        for match in result.matches:
            assert match.text[slice(*match.span)].lower() == word.lower()


def test_a_search_that_is_continued_finds_the_same_as_one_that_is_not(opened: OpenSplit):
    whole = [match.number for match in run_search(opened, text="a").matches]
    found, first = [], 0
    while first < len(opened.access):
        result = run_search(opened, text="a", most=20, first=str(first))
        found += [match.number for match in result.matches]
        assert result.end == first + result.scanned > first
        first = result.end
    assert found == whole


def test_a_search_stops_when_its_time_is_over_but_never_without_progress(opened: OpenSplit):
    ticks = itertools.count()
    result = run_search(opened, text="not in any row", seconds=3.0, clock=lambda: float(next(ticks)))
    assert not result.matches and 0 < result.scanned < len(opened.access)
    result = run_search(opened, text="not in any row", seconds=0.0, clock=lambda: float(next(ticks)))
    assert result.scanned == 16


def test_rows_are_filtered_by_length(opened: OpenSplit):
    lengths = [len(row.ids) for row in opened.access.rows(range(len(opened.access)))]
    shorter = [number for number, length in enumerate(lengths) if length < 32]
    assert [match.number for match in run_search(opened, max="31").matches] == shorter
    assert len(run_search(opened, min="32").matches) == len(lengths) - len(shorter)


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "١", "9" * 17, "1e3", " 1"])
def test_a_parameter_that_is_not_a_number_is_named(value: str):
    with pytest.raises(BadRequest, match="which is not a whole number"):
        Filter.parse({"first": value})


def test_a_filter_survives_its_url():
    wanted = Filter(split="a", text="1 & 2 = ü?", case=True, source="#", unit=0, min=0, first=7)
    _, _, query = wanted.url("rows").partition("?")
    assert Filter.parse(dict(parse_qsl(query))) == wanted
    assert Filter().url("rows") == "rows?"
