"""Self-attention with grouped heads, documents, windows and soft caps, as plain operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.network.dropout import DropoutKey, drop
from tpu_trainer.network.stack import Kept

_UNSEEN = -1e9


class Visibility(NamedTuple):
    """Which keys a query sees."""

    causal: bool
    """Only those up to its own position."""
    window: tf.Tensor | int | None = None
    """Only those less than this many positions away; None: all."""
    segments: tf.Tensor | None = None
    """int32[B, L]: only those of its own segment; None: all. Padding is a segment of its own."""
    order: np.ndarray | None = None
    """int32[L]: the place of each column in its row; None: columns are in order."""

    def mask(self, length: int) -> tf.Tensor | None:
        """Returns bool[B or 1, 1, 1, L, L]; None if each query sees all keys."""
        place = tf.range(length) if self.order is None else tf.constant(self.order)
        distance = place[:, None] - place[None, :]
        masks = []
        if self.causal:
            masks.append((distance >= 0)[None])
        if self.window is not None:
            masks.append((tf.abs(distance) < self.window)[None])
        if self.segments is not None:
            masks.append(self.segments[:, :, None] == self.segments[:, None, :])
        if not masks:
            return None
        mask = masks[0]
        for further in masks[1:]:
            mask &= further
        return mask[:, None, None]


class ProbabilitiesDropout(NamedTuple):
    """Dropout of attention's probabilities."""

    rate: float
    key: DropoutKey | None
    """None: no dropout."""
    place: tf.Tensor | int
    """See drop."""


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    visibility: Visibility,
    scale: tf.Tensor | float,
    soft_cap: float | None,
    kept: Kept,
    dropout: ProbabilitiesDropout,
) -> tf.Tensor:
    """Returns dropout(softmax(query · keyᵀ · scale)) · value, [B, L, H, D], in the inputs' dtype.

    Scores and softmax are float32.

    Args:
        query: [B, L, H, D].
        key: [B, L, K, D]; each key head is for H / K neighbouring query heads.
        value: [B, L, K, D].
        visibility: Keys that are not visible get probability 0.
        scale: Factor of the scores.
        soft_cap: See architecture.Attention.
        kept: Keeps the probabilities.
        dropout: Of the probabilities.
    """
    rows, length, heads, size = query.shape
    groups = key.shape[2]
    query = tf.reshape(query, [rows, length, groups, heads // groups, size])
    if isinstance(scale, float):
        query *= tf.cast(scale, query.dtype)
    scores = tf.cast(tf.einsum("blkgd,bmkd->bkglm", query, key), tf.float32)
    if not isinstance(scale, float):
        scores *= scale
    if soft_cap is not None:
        scores = soft_cap * tf.tanh(kept("scores", scores) / soft_cap)
    mask = visibility.mask(length)
    if mask is not None:
        scores = tf.where(mask, scores, _UNSEEN)
    probabilities = _softmax(scores, query.dtype, kept)
    flat = tf.reshape(probabilities, [rows, heads, length, length])
    flat = drop(flat, *dropout)
    probabilities = tf.reshape(flat, probabilities.shape)
    result = tf.einsum("bkglm,bmkd->blkgd", probabilities, value)
    return tf.reshape(result, [rows, length, heads, size])


def _softmax(scores: tf.Tensor, dtype: tf.DType, kept: Kept) -> tf.Tensor:
    stored = kept.stored("probabilities")

    @tf.custom_gradient
    def softmax(scores: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        result = tf.cast(tf.nn.softmax(scores), dtype) if stored is None else tf.identity(stored)

        def gradient(d_result: tf.Tensor) -> tf.Tensor:
            wide, d_wide = tf.cast(result, tf.float32), tf.cast(d_result, tf.float32)
            return wide * (d_wide - tf.reduce_sum(wide * d_wide, axis=-1, keepdims=True))

        return result, gradient

    return kept("probabilities", softmax(scores))
