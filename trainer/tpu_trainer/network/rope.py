"""Rotary position embeddings (Su et al., "RoFormer", 2021, arXiv 2104.09864)."""

from __future__ import annotations

import tensorflow as tf

from tpu_trainer.network.frequencies import Rope


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
