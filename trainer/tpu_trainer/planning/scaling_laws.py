"""Published laws of the loss by model size and tokens, and what they imply for a run.

All have the form L(N, D) = E + A / N^α + B / D^β (Hoffmann et al., 2022, arXiv 2203.15556, equation 2), in nats per
token, for causal models of N parameters trained once on D tokens of web text. They differ in their data and fits, so
that their range shows how much is known. Repeated tokens, and parameters beyond the best size for the different tokens,
count less (Muennighoff et al., 2023, arXiv 2305.16264, equations 5 and 6).

The digits are those of the papers' authors: each law has its place below. All are checked against copies of the papers'
texts and of code that reproduces them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LEAST_PARAMETERS, LEAST_TOKENS = 10e6, 100e6
"""About the smallest of the fits, 7M parameters and 100M tokens, those of Muennighoff et al. The laws say nothing about
smaller ones."""
_REPETITIONS, _EXCESS = 15.387756, 5.309743
"""R*_D and R*_N of Muennighoff et al., appendix A, equations 16 and 17: so many repetitions of all add as much as any
number can."""
_SIZES = np.geomspace(1e6, 1e13, 7001)


class Range(NamedTuple):
    """The first law's value, and the lowest and highest of all laws."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """A fit of the five constants."""

    source: str
    irreducible: float
    """E."""
    size_factor: float
    """A."""
    size_exponent: float
    """α."""
    token_factor: float
    """B."""
    token_exponent: float
    """β."""

    def loss(self, parameters: float, tokens: float) -> float:
        """Returns L(N, D) in nats per token."""
        return (
            self.irreducible
            + self.size_factor * parameters**-self.size_exponent
            + self.token_factor * tokens**-self.token_exponent
        )

    def run_loss(self, parameters: float, unique: float, effective: float) -> float:
        """Returns the loss of a run on `unique` different tokens that are worth `effective` tokens in all."""
        return self.loss(_worth(self.best_size_for(min(unique, effective)), parameters, _EXCESS), effective)

    def best_run(self, flops: float, unique: float) -> float:
        """Returns the parameters with the lowest loss if 6 N D operations are spent on `unique` different tokens."""
        tokens = flops / 6 / _SIZES
        enough = self.best_size_for(np.minimum(unique, tokens))
        losses = self.loss(_worth(enough, _SIZES, _EXCESS), _worth(unique, tokens, _REPETITIONS))
        return float(_SIZES[np.argmin(losses)])

    def best_size_for(self, tokens: float) -> float:
        """Returns the parameters for which `tokens`, read once, is the best number (Hoffmann et al., equation 4)."""
        return self._ratio * (tokens * self._ratio) ** (self.token_exponent / self.size_exponent)

    @property
    def _ratio(self) -> float:
        """G of equation 4 of Hoffmann et al."""
        quotient = self.size_exponent * self.size_factor / (self.token_exponent * self.token_factor)
        return quotient ** (1 / (self.size_exponent + self.token_exponent))


LAWS = (
    ScalingLaw(
        # Of April 2024, revised in May: the text, and the output of the authors' notebook (data_analysis.ipynb of
        # epoch-research/analyzing-chinchilla, 14 May 2024: A 482.006 ± 124.5, B 2085.434 ± 1293.3).
        source="Besiroglu et al. 2024, arXiv 2404.10102",
        irreducible=1.8172,
        size_factor=482.01,
        size_exponent=0.3478,
        token_factor=2085.43,
        token_exponent=0.3658,
    ),
    ScalingLaw(
        # Of March 2022. Equation 10 prints 1.69, 0.34 and 0.28; the source of its text has ln E 0.5267228, ln A
        # 6.0073404, ln B 6.0179186, α 0.33917084 and β 0.2849083, as the notebook above quotes them.
        source="Hoffmann et al. 2022, arXiv 2203.15556, approach 3",
        irreducible=1.6934,
        size_factor=406.4,
        size_exponent=0.3392,
        token_factor=410.7,
        token_exponent=0.2849,
    ),
    ScalingLaw(
        # Of May 2023, appendix B, equations 19 and 20: a fit on C4 with α = β.
        source="Muennighoff et al. 2023, arXiv 2305.16264",
        irreducible=math.exp(0.6254804),
        size_factor=math.exp(6.255414),
        size_exponent=0.3526596,
        token_factor=math.exp(7.3049974),
        token_exponent=0.3526596,
    ),
)


def over_laws(figure: Callable[[ScalingLaw], float]) -> Range:
    """Returns the range of a figure over all laws."""
    values = [figure(law) for law in LAWS]
    return Range(values[0], min(values), max(values))


def effective_tokens(unique: float, read: float) -> float:
    """Returns the tokens that, read once, are worth `read` tokens of which `unique` are different."""
    return float(_worth(unique, read, _REPETITIONS))


def _worth(unit: float | np.ndarray, amount: float | np.ndarray, most: float) -> np.ndarray:
    """Returns what an amount is worth if what exceeds a unit counts less and less, at most `most` units.

    Equation 5 of Muennighoff et al.: U + U R* (1 - exp(-R / R*)), with R units after the first.
    """
    excess = np.maximum(amount / unit - 1, 0.0)
    return np.minimum(amount, unit) + unit * most * (1 - np.exp(-excess / most))
