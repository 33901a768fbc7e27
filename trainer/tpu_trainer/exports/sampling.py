"""Chooses the next token from its logits: the most probable one, or a random one drawn with a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling by temperature, then top-k, then top-p, as in transformers' `generate`."""

    temperature: float
    """Divisor of the logits; 0: choose the most probable token."""
    top_k: int | None
    """Sample from this many of the most probable tokens; None: from all."""
    top_p: float | None
    """Of these, sample from the fewest most probable tokens whose probabilities reach this sum; None: from all."""
    seed: int

    def choose(self, logits: np.ndarray, *, lines: Sequence[int], step: int) -> np.ndarray:
        """Returns a token for each row, int64[B].

        Args:
            logits: float[B, V].
            lines: The rows' line numbers. A random token is a function of (seed, line, step), not of the batch.
            step: Number of tokens generated before this one.
        """
        if self.temperature == 0:
            return logits.argmax(axis=-1)
        return np.array([self._draw(row, line, step) for row, line in zip(logits, lines, strict=True)])

    def probabilities(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the candidate tokens for a row of logits (float[V]), the most probable first.

        Returns:
            The tokens, int64[N], and their probabilities, float64[N].
        """
        tokens = np.argsort(-logits, kind="stable")[: self.top_k]
        scaled = logits[tokens].astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled[0])
        shares = weights / weights.sum()
        if self.top_p is not None:
            # Including the token that reaches the sum.
            count = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            tokens, shares = tokens[:count], shares[:count] / shares[:count].sum()
        return tokens, shares

    def _draw(self, logits: np.ndarray, line: int, step: int) -> int:
        tokens, shares = self.probabilities(logits)
        bits = np.random.Philox(key=np.array([self.seed, line], np.uint64), counter=step).random_raw(1)[0]
        place = np.searchsorted(np.cumsum(shares), (int(bits) >> 11) / 2**53, side="right")
        return int(tokens[min(int(place), len(tokens) - 1)])  # the rounded sum may be slightly below 1
