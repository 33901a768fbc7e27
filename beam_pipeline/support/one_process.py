"""Runs a pipeline's steps in this process, without Apache Beam, whose import and local runner take 1.4 s of CPU.

It has the part of Beam's interface that the steps use; `pipelines` chooses between the two. Elements are passed on as
they are, neither copied nor encoded, and a step with one output and one reader is not stored: each element passes
through all such steps before the next one. Labels are for Beam's runners, and ignored here.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from beam_pipeline.support.copies import outputs_in_order

_MAIN = None  # the tag of outputs without one


class TaggedOutput(NamedTuple):
    """An element of the output with this tag."""

    tag: str
    value: Any


def at_end_of_bundle(tag: str, value: Any) -> TaggedOutput:
    """Makes an output of `finish_bundle`."""
    return TaggedOutput(tag, value)


class Metrics:
    """Counters, which only the runners of Beam show: a run in one process shows its progress and a summary."""

    def inc(self, count: int = 1) -> None:
        """Does nothing."""

    def update(self, value: int) -> None:
        """Does nothing."""

    @classmethod
    def counter(cls, namespace: str, name: str) -> Metrics:
        return cls()

    distribution = counter


class DoFn:
    """A step. See `apache_beam.DoFn`."""

    at_once = 1
    """How many elements are processed at the same time, by copies of the step. Then it has no `finish_bundle`."""

    def setup(self) -> None:
        """Prepares for the first element. It is not called if there is none."""

    def start_bundle(self) -> None:
        """Prepares for a bundle; here, all elements are one."""

    def process(self, element: Any, *side: Any) -> Iterable[Any] | None:
        raise NotImplementedError

    def finish_bundle(self) -> Iterable[Any] | None:
        """Returns further outputs, made by `at_end_of_bundle`."""

    def teardown(self) -> None:
        """Cleans up after the last element."""


class CombineFn:
    """See `apache_beam.CombineFn`."""

    def create_accumulator(self) -> Any:
        raise NotImplementedError

    def add_input(self, accumulator: Any, element: Any) -> Any:
        raise NotImplementedError

    def extract_output(self, accumulator: Any) -> Any:
        raise NotImplementedError


class Pipeline:
    """Collects the outputs of the steps that are added to it; `run` computes them."""

    def __init__(self) -> None:
        self._collections: list[PCollection] = []

    @property
    def pipeline(self) -> Pipeline:
        return self

    def add(self, compute: Callable[[], Iterable[Any]]) -> PCollection:
        """Adds an output and returns it."""
        collection = PCollection(self, compute)
        self._collections.append(collection)
        return collection

    def run(self) -> None:
        """Computes all outputs. Raises the exceptions of the steps."""
        for collection in self._collections:
            if not collection.readers:
                for _ in collection.read():
                    pass


class PCollection:
    """The elements of an output, which are computed when the first reader needs them."""

    def __init__(self, pipeline: Pipeline, compute: Callable[[], Iterable[Any]]):
        self.pipeline = pipeline
        self._compute: Callable[[], Iterable[Any]] | None = compute
        self._elements: list[Any] = []
        self.readers = 0
        """The steps that read it. Each does so once."""
        self._reads = 0

    def read(self) -> Iterable[Any]:
        """Returns the elements. They are stored until the last reader has come, if there are several."""
        compute, self._compute = self._compute, None
        self._reads += 1
        if compute is not None:
            if self.readers <= 1:
                return compute()
            self._elements = list(compute())
        elements = self._elements
        if self._reads == self.readers:
            self._elements = []
        return elements


class AsIter:
    """All elements of a collection as an argument of a step."""

    def __init__(self, collection: PCollection):
        self.collection = collection
        collection.readers += 1

    def value(self) -> Any:
        """Returns the argument."""
        return list(self.collection.read())


class AsSingleton(AsIter):
    """The only element of a collection as an argument of a step."""

    def value(self) -> Any:
        (element,) = self.collection.read()
        return element


class DoOutputsTuple:
    """The outputs of a step by tag."""

    def __init__(self, outputs: Mapping[str | None, PCollection]):
        self._outputs = outputs

    def __getitem__(self, tag: str) -> PCollection:
        return self._outputs[tag]


class PTransform:
    """A step, or several that `expand` adds. Applied by `|`, to a pipeline, a collection, or several of them."""

    def __rrshift__(self, label: str) -> PTransform:
        return self

    def __ror__(self, inputs: Any) -> Any:
        return self.expand(inputs)

    def expand(self, inputs: Any) -> Any:
        raise NotImplementedError


class Create(PTransform):
    """These elements."""

    def __init__(self, elements: Iterable[Any]):
        self._elements = elements

    def expand(self, inputs: Pipeline) -> PCollection:
        return inputs.add(lambda: self._elements)


class ParDo(PTransform):
    """A `DoFn` for each element, with side inputs, which are computed before."""

    def __init__(self, function: DoFn, *side: Any, **named_side: Any):
        self._function, self._side, self._named_side = function, side, named_side
        self._tags: tuple[str | None, ...] = ()

    def with_outputs(self, *tags: str, main: str | None = _MAIN) -> ParDo:
        """Returns this step with several outputs; `main` names the one of elements without a tag."""
        self._tags, self._main = (main, *tags), main
        return self

    def expand(self, inputs: PCollection) -> PCollection | DoOutputsTuple:
        inputs.readers += 1
        if not self._tags:
            return inputs.pipeline.add(lambda: self._outputs(inputs))
        stored: dict[str | None, deque[Any]] = {}

        def compute(tag: str | None) -> Iterator[Any]:
            if not stored:
                stored.update((each, deque()) for each in self._tags)
                for output in self._outputs(inputs):
                    is_tagged = isinstance(output, TaggedOutput)
                    output_tag, value = output if is_tagged else (self._main, output)
                    if collections[output_tag].readers:
                        stored[output_tag].append(value)
            elements = stored.pop(tag)
            while elements:  # none is kept after it is used
                yield elements.popleft()

        collections = {tag: inputs.pipeline.add(lambda tag=tag: compute(tag)) for tag in self._tags}
        return DoOutputsTuple(collections)

    def _outputs(self, inputs: PCollection) -> Iterator[Any]:
        side = [_value(argument) for argument in self._side]
        named_side = {name: _value(argument) for name, argument in self._named_side.items()}
        if self._function.at_once > 1:

            def make_process() -> Callable[[Any], Iterable[Any]]:
                step = copy.copy(self._function)
                step.setup()
                return lambda element: step.process(element, *side, **named_side) or ()

            yield from outputs_in_order(inputs.read(), make_process, self._function.at_once)
            return
        is_set_up = False
        for element in inputs.read():
            if not is_set_up:
                self._function.setup()
                self._function.start_bundle()
                is_set_up = True
            yield from self._function.process(element, *side, **named_side) or ()
        if is_set_up:
            yield from self._function.finish_bundle() or ()
            self._function.teardown()


def _value(argument: Any) -> Any:
    return argument.value() if isinstance(argument, AsIter) else argument


class _Function(DoFn):
    def __init__(self, function: Callable[..., Any]):
        self.process = function


class FlatMap(ParDo):
    """A function for each element, which returns an iterable of outputs."""

    def __init__(self, function: Callable[..., Any], *side: Any, **named_side: Any):
        super().__init__(_Function(function), *side, **named_side)


class Map(FlatMap):
    """A function for each element, which returns the output."""

    def __init__(self, function: Callable[..., Any], *side: Any, **named_side: Any):
        super().__init__(
            lambda element, *values, **named: (function(element, *values, **named),), *side, **named_side
        )


class Flatten(PTransform):
    """The elements of several collections."""

    def expand(self, inputs: Iterable[PCollection]) -> PCollection:
        collections = tuple(inputs)
        for collection in collections:
            collection.readers += 1
        return collections[0].pipeline.add(
            lambda: itertools.chain.from_iterable(collection.read() for collection in collections)
        )


class _OfAll(PTransform):
    """Outputs that are a function of all elements together."""

    def __init__(self, compute: Callable[[Iterable[Any]], Iterable[Any]]):
        self._compute = compute

    def expand(self, inputs: PCollection) -> PCollection:
        inputs.readers += 1
        return inputs.pipeline.add(lambda: self._compute(inputs.read()))


class Reshuffle(_OfAll):
    """The same elements. Other runners distribute them here."""

    def __init__(self) -> None:
        super().__init__(lambda elements: elements)


class GroupByKey(_OfAll):
    """Pairs → each key with all its values."""

    def __init__(self) -> None:
        super().__init__(_groups)


class CombinePerKey(_OfAll):
    """Pairs → each key with its combined values."""

    def __init__(self, combine: CombineFn | Callable[[list[Any]], Any]):
        super().__init__(
            lambda pairs: ((key, _combined(combine, values)) for key, values in _grouped(pairs).items())
        )


class CombineGlobally(_OfAll):
    """All elements combined, also if there are none."""

    def __init__(self, combine: CombineFn | Callable[[list[Any]], Any]):
        super().__init__(lambda elements: [_combined(combine, elements)])


class combiners:
    """See `apache_beam.combiners`."""

    class ToList(CombineGlobally):
        """A list of all elements."""

        def __init__(self) -> None:
            super().__init__(list)


class CoGroupByKey(PTransform):
    """Collections of pairs, by name → each key with its values in each collection, by name."""

    def expand(self, inputs: Mapping[str, PCollection]) -> PCollection:
        for collection in inputs.values():
            collection.readers += 1

        def join() -> Iterator[tuple[Any, dict[str, list[Any]]]]:
            grouped = {name: _grouped(collection.read()) for name, collection in inputs.items()}
            for key in dict.fromkeys(itertools.chain.from_iterable(grouped.values())):
                yield key, {name: groups.pop(key, []) for name, groups in grouped.items()}

        return next(iter(inputs.values())).pipeline.add(join)


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _groups(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, list[Any]]]:
    groups = _grouped(pairs)
    for key in list(groups):  # none is kept after it is used
        yield key, groups.pop(key)


def _combined(combine: CombineFn | Callable[[list[Any]], Any], values: Iterable[Any]) -> Any:
    if not isinstance(combine, CombineFn):
        return combine(list(values))
    accumulator = combine.create_accumulator()
    for value in values:
        accumulator = combine.add_input(accumulator, value)
    return combine.extract_output(accumulator)
