"""The results of executed steps besides the updated state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class SourceSums(NamedTuple):
    """Sums over the rows of a source."""

    loss: Any
    correct: Any
    targets: Any
    padding: Any
    """Tokens of padding, which are few: float32 counts them exactly, and with the rows the real tokens."""


class RunningSums(NamedTuple):
    """Sums over the steps since the last logged one: float32 scalars on the devices, floats on the host."""

    loss: Any
    correct: Any
    targets: Any
    tokens: Any
    gradient_norm: Any
    """Global norms of the gradients, before clipping."""
    steps: Any
    """Optimizer steps."""
    skipped: Any
    """Steps whose update was skipped as a loss spike."""
    sources: tuple[SourceSums, ...] = ()
    """The sums of each source, if there are several."""

    @classmethod
    def size(cls, sources: int) -> int:
        """Returns the number of values in the sums with so many sources."""
        return len(cls._fields) - 1 + sources * len(SourceSums._fields)

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> RunningSums:
        """Returns the sums of `size` values: all but the sources, then the sums of each source."""
        own, count = cls.size(0), len(SourceSums._fields)
        sources = (SourceSums(*values[start : start + count]) for start in range(own, len(values), count))
        return cls(*values[:own], sources=tuple(sources))


class NonFinite(NamedTuple):
    """The first step of this process whose loss or gradient was not finite."""

    step: int
    """Updates made, including that step."""
    loss: float
    gradient_norm: float

    @classmethod
    def from_record(cls, step: np.ndarray, figures: np.ndarray) -> NonFinite | None:
        """Returns the contents of `Task.non_finite_record`; None if there was no such step."""
        return cls(int(step), *figures.tolist()) if step else None
