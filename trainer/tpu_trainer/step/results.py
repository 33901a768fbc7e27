"""The results of executed steps besides the updated state."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


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
