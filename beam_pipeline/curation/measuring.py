"""Measures of texts, and the rules that decide by them. A rule is a measure function and limits of its measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from beam_pipeline.curation.removals import Removals
from beam_pipeline.curation.words import Words, WordSplitter


@dataclass(frozen=True)
class MeasuredTexts:
    """Texts, with what several measures need of them."""

    texts: list[str]
    splitter: WordSplitter

    @cached_property
    def words(self) -> Words:
        return self.splitter.split(self.texts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64 [texts], in characters."""
        return np.fromiter(map(len, self.texts), np.int64, len(self.texts))


Measures = Mapping[str, np.ndarray]
"""Values by the name of a measure, each an array [texts]."""


@dataclass(frozen=True)
class Measured:
    """What a rule measures."""

    measures: Measures
    texts: list[str] | None = None
    """The texts without the parts that the rule removes; None if it removes none."""


@dataclass(frozen=True)
class Limit:
    """A bound of a measure, beyond which a text is removed. An option can change it."""

    name: str
    """Its name within the rule. `min_…` is a lower bound, anything else an upper one."""
    measure: str
    default: float

    def is_broken(self, values: np.ndarray, bound: float) -> np.ndarray:
        """Returns whether each value is beyond the bound, bool [texts]."""
        return values < bound if self.name.startswith("min_") else values > bound


@dataclass(frozen=True)
class Rule:
    """A published filter."""

    name: str
    measure: Callable[[MeasuredTexts, Mapping[str, float]], Measured]
    """Measures texts, with the rule's limits and settings."""
    limits: Sequence[Limit]
    """In the order in which they are checked."""
    settings: Mapping[str, float]
    """Numbers that the measures depend on, by name, with their defaults."""

    @property
    def defaults(self) -> dict[str, float]:
        """The limits and settings by name."""
        return {limit.name: limit.default for limit in self.limits} | dict(self.settings)

    def removals(self, measures: Measures, bounds: Mapping[str, float]) -> Removals:
        """Decides by measures.

        Args:
            measures: What `measure` returned.
            bounds: The rule's limits by name.

        Returns:
            The texts that break a limit, by their index. The evidence names the first limit that a text breaks, with
            its bound, and the value is the measure.
        """
        texts = len(next(iter(measures.values())))
        undecided = np.ones(texts, bool)
        parts = []
        for limit in self.limits:
            values = measures[limit.measure]
            broken = np.flatnonzero(undecided & limit.is_broken(values, bounds[limit.name]))
            undecided[broken] = False
            evidence = {"measure": limit.measure, limit.name: bounds[limit.name]}
            parts.append(Removals.of_rule(self.name, broken, values[broken], [evidence] * len(broken)))
        return Removals.concat(parts)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides; 0 where the denominator is 0.

    >>> ratio(np.array([1, 0]), np.array([4, 0]))
    array([0.25, 0.  ])
    """
    result = np.zeros(len(numerator))
    return np.divide(numerator, denominator, out=result, where=denominator != 0)
