"""The next token from its logits: the likeliest, or one drawn at random by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen; the order of the three steps, and their meaning, are those of transformers' `generate`."""

    temperature: float
    """What logits are divided by; 0: the likeliest token is taken."""
    top_k: int | None
    """Only so many tokens, the likeliest, are drawn from."""
    top_p: float | None
    """Of these only the likeliest, so many that their probabilities reach this sum."""
    seed: int

    def choose(self, logits: np.ndarray, *, lines: Sequence[int], step: int) -> np.ndarray:
        """int64[B]: a token for each row of `logits` (float[B, V]).

        Args:
            logits: Of the next tokens.
            lines: The rows' numbers: what is drawn is a function of (seed, line, step), whatever else is in the batch.
            step: Tokens drawn before this one.
        """
        if self.temperature == 0:
            return logits.argmax(axis=-1)
        return np.array([self._draw(row, line, step) for row, line in zip(logits, lines, strict=True)])

    def probabilities(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens (int64[N]) that may be drawn for a row of logits (float[V]), and their probabilities (float64[N]),
        the likeliest first."""
        tokens = np.argsort(-logits, kind="stable")[: self.top_k]
        scaled = logits[tokens].astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled[0])
        shares = weights / weights.sum()
        if self.top_p is not None:
            # The token that reaches the sum is one of them.
            count = int(np.searchsorted(np.cumsum(shares), self.top_p)) + 1
            tokens, shares = tokens[:count], shares[:count] / shares[:count].sum()
        return tokens, shares

    def _draw(self, logits: np.ndarray, line: int, step: int) -> int:
        tokens, shares = self.probabilities(logits)
        bits = np.random.Philox(key=np.array([self.seed, line], np.uint64), counter=step).random_raw(1)[0]
        place = np.searchsorted(np.cumsum(shares), (int(bits) >> 11) / 2**53, side="right")
        return int(tokens[min(int(place), len(tokens) - 1)])  # rounding may leave the sum a little below 1
