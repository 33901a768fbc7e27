"""Rotary position embeddings (Su et al., "RoFormer", 2021, arXiv 2104.09864) and what extends them to longer rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


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


def rope_tables(ropes: tuple[Rope, ...], positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cosines and sines of all rotations, float32[R, B or 1, L, D / 2].

    Args:
        ropes: R rotations of the same number of dimensions.
        positions: int32[B or 1, L].
    """
    frequencies = tf.constant([rope.frequencies for rope in ropes], tf.float32)
    angles = frequencies[:, None, None, :] * tf.cast(positions, tf.float32)[None, :, :, None]
    factors = tf.constant([rope.factor for rope in ropes], tf.float32)[:, None, None, None]
    return tf.cos(angles) * factors, tf.sin(angles) * factors


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor, *, interleaved: bool = False) -> tf.Tensor:
    """Returns the rotated heads, in the dtype of `x`, computed in float32.

    Args:
        x: [B, L, heads, D].
        cosines: float32[B or 1, L, R / 2]; the last D - R dimensions are not rotated.
        sines: As `cosines`.
        interleaved: See Rope.
    """
    size = 2 * cosines.shape[-1]
    rotated, rest = tf.cast(x[..., :size], tf.float32), x[..., size:]
    cosines, sines = cosines[:, :, None, :], sines[:, :, None, :]
    if interleaved:
        pairs = tf.reshape(rotated, [*x.shape[:-1], size // 2, 2])
        first, second = pairs[..., 0], pairs[..., 1]
        turned = tf.stack([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
        turned = tf.reshape(turned, rotated.shape)
    else:
        first, second = tf.split(rotated, 2, axis=-1)
        turned = tf.concat([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    turned = tf.cast(turned, x.dtype)
    return turned if size == x.shape[-1] else tf.concat([turned, rest], axis=-1)
