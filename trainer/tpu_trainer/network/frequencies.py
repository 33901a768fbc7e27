"""Frequencies of rotary position embeddings, and what extends them to longer rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Rope:
    """A rotation of the first `2 · len(frequencies)` dimensions of a head."""

    frequencies: tuple[float, ...]
    """Radians per position of each pair of dimensions. 0: the pair is not rotated."""
    factor: float = 1.0
    """Of the rotated values, from YaRN."""
    interleaved: bool = False
    """Whether a pair is two neighbouring dimensions, as in GPT-J, instead of one in each half."""


def plain_frequencies(size: int, theta: float) -> np.ndarray:
    """Returns the frequencies for `size` dimensions: theta^(-2i / size), float64[size / 2]."""
    return theta ** -(np.arange(0, size, 2) / size)


def llama3_frequencies(
    size: int, theta: float, *, factor: float, low: float, high: float, original: int
) -> np.ndarray:
    """Returns Llama 3.1's frequencies: long wavelengths are stretched by `factor`, short ones kept.

    Between `original ÷ low` and `original ÷ high` positions per turn, both are mixed.
    """
    frequencies = plain_frequencies(size, theta)
    turns = original * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - share) * frequencies / factor + share * frequencies


def yarn_frequencies(
    size: int,
    theta: float,
    *,
    factor: float,
    fast: float,
    slow: float,
    original: int,
    truncate: bool = True,
) -> np.ndarray:
    """Returns YaRN's frequencies (Peng et al., 2023, arXiv 2309.00071, 3.2).

    Dimensions that turn more than `fast` times within `original` positions are kept, those that turn less than `slow`
    times are divided by `factor`.
    """

    def dimension(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension(fast), dimension(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    last = first + 0.001 if first == last else last
    kept = 1 - np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
    frequencies = plain_frequencies(size, theta)
    return frequencies / factor * (1 - kept) + frequencies * kept
