"""The parts of Beam's interface that run without Beam: Apache Beam itself gives the same elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import apache_beam
import pytest
from apache_beam import pvalue

from beam_pipeline.runners import beam_options, run
from beam_pipeline.support import one_process, pipelines

LETTERS = ["a", "b", "c", "a"]
PAIRS = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]

Build = Callable[[Any, ModuleType, ModuleType], Any]
"""Adds steps to a pipeline, by the names of one of the two modules and the module of its side inputs."""


def read_twice(letters: Any, beam: ModuleType, side: ModuleType) -> Any:
    total = letters | "One" >> beam.Map(lambda letter: 1) | "Count" >> beam.CombineGlobally(sum)
    return letters | "Join" >> beam.Map(
        lambda letter, count, others: (letter, count, sorted(others)),
        side.AsSingleton(total),
        others=side.AsIter(letters),
    )


def tagged(letters: Any, beam: ModuleType, side: ModuleType) -> Any:
    def split(letter: str) -> Iterator[Any]:
        yield letter.upper()
        if letter == "a":
            yield side.TaggedOutput("first", letter)
        yield side.TaggedOutput("unread", letter)

    outputs = letters | "Split" >> beam.FlatMap(split).with_outputs("first", "unread", main="rest")
    return (outputs["first"], outputs["rest"], letters) | "All" >> beam.Flatten()


def grouped(letters: Any, beam: ModuleType, side: ModuleType) -> Any:
    pairs = letters.pipeline | "Pairs" >> beam.Create(PAIRS)
    spread = pairs | "Spread" >> beam.Reshuffle()
    groups = (
        spread | "Group" >> beam.GroupByKey() | "Sort" >> beam.Map(lambda item: (item[0], sorted(item[1])))
    )
    joined = {"pairs": spread, "others": letters | "Pair" >> beam.Map(lambda letter: (letter, 0))}
    cogrouped = (
        joined
        | "Join" >> beam.CoGroupByKey()
        | "SortJoined"
        >> beam.Map(lambda item: (item[0], {name: sorted(values) for name, values in item[1].items()}))
    )
    return (groups, cogrouped) | "Both" >> beam.Flatten()


def combined(letters: Any, beam: ModuleType, side: ModuleType) -> Any:
    class Total(beam.CombineFn):
        def create_accumulator(self) -> list[int]:
            return [0]

        def add_input(self, accumulator: list[int], element: int) -> list[int]:
            accumulator[0] += element
            return accumulator

        def merge_accumulators(self, accumulators: Iterable[list[int]]) -> list[int]:
            return [sum(number for (number,) in accumulators)]

        def extract_output(self, accumulator: list[int]) -> int:
            return accumulator[0]

    pipeline = letters.pipeline
    nothing = pipeline | "Nothing" >> beam.Create([])
    return (
        pipeline | "Pairs" >> beam.Create(PAIRS) | "PerKey" >> beam.CombinePerKey(Total()),
        pipeline | "Others" >> beam.Create(PAIRS) | "Sums" >> beam.CombinePerKey(sum),
        nothing | "Sum" >> beam.CombineGlobally(sum),
        nothing | "NoList" >> beam.combiners.ToList(),
        nothing | "Group" >> beam.GroupByKey(),
    ) | "All" >> beam.Flatten()


def composite(letters: Any, beam: ModuleType, side: ModuleType) -> Any:
    class Twice(beam.PTransform):
        def expand(self, inputs: Any) -> Any:
            return inputs | "Twice" >> beam.FlatMap(lambda letter: [letter, letter])

    class Number(beam.DoFn):
        def setup(self) -> None:
            self.prefix = "n"

        def process(self, letter: str) -> Iterator[str] | None:
            return iter([self.prefix + letter]) if letter != "b" else None

    return letters | Twice() | "Number" >> beam.ParDo(Number())


def write(elements: list[Any], path: str) -> None:
    Path(path).write_text(repr(sorted(elements, key=repr)))


@pytest.mark.parametrize("build", [read_twice, tagged, grouped, combined, composite])
def test_apache_beam_gives_the_same_elements(build: Build, tmp_path: Path) -> None:
    def build_with(beam: ModuleType, side: ModuleType, path: Path) -> Callable[[Any], None]:
        def build_and_write(pipeline: Any) -> None:
            built = build(pipeline | "Letters" >> beam.Create(LETTERS), beam, side)
            _ = built | "List" >> beam.combiners.ToList() | "Write" >> beam.Map(write, str(path))

        return build_and_write

    beams, ours = tmp_path / "beams", tmp_path / "ours"
    run.run(build_with(apache_beam, pvalue, beams), beam_options.parse([]))
    pipeline = one_process.Pipeline()
    build_with(one_process, one_process, ours)(pipeline)
    pipeline.run()
    assert ours.read_text() == beams.read_text()
    assert len(ours.read_text()) > 20


def test_it_has_all_names_that_the_steps_use() -> None:
    missing = {name for name in pipelines.__all__ if not hasattr(one_process, name)}
    assert missing == {"IS_BEAM"}


def test_elements_are_kept_for_the_last_reader_only() -> None:
    pipeline = one_process.Pipeline()
    numbers = pipeline | one_process.Create([1, 2])
    mapped = numbers | one_process.Map(lambda number: number + 1)
    seen: list[Any] = []
    for _ in range(2):
        _ = mapped | one_process.Map(seen.append)
    pipeline.run()
    assert seen == [2, 3, 2, 3]
    assert mapped._elements == []


def test_a_step_without_elements_is_not_set_up() -> None:
    class Fails(one_process.DoFn):
        def setup(self) -> None:
            raise AssertionError

    pipeline = one_process.Pipeline()
    _ = pipeline | one_process.Create([]) | one_process.ParDo(Fails())
    pipeline.run()
