"""Which tokens of a row are to be predicted: single ones, whole words, or spans; always exactly as many as asked for.

Everything has static shapes: a row has T places, of which the first `count` are used. Bits come from a function of the
row and a counter, so that a row's choice does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# Counters of the draws: columns are below 2**20.
_LENGTHS = 1 << 28
# Joshi et al., "SpanBERT" (2019), 3.1: lengths are geometric, and at most 10.
SPAN_PROBABILITY, MAX_SPAN = 0.2, 10

Draw = Callable[[tf.Tensor | np.ndarray], tuple[tf.Tensor, tf.Tensor]]
"""uint32[1 or B, n] counters → two uint32[B, n] of random bits."""


class Selection(NamedTuple):
    """Chosen tokens; those that fill up the unused places are others, each once."""

    positions: tf.Tensor
    """int32[B, T]: their columns."""
    units: tf.Tensor
    """int32[B, T]: the column of the unit that is replaced as one: the token itself, or its span's first."""


def span_lengths() -> np.ndarray:
    """float64[MAX_SPAN]: the probability of each length from 1 on."""
    weights = SPAN_PROBABILITY * (1 - SPAN_PROBABILITY) ** np.arange(MAX_SPAN)
    return weights / weights.sum()


def select_tokens(*, maskable: tf.Tensor, draw: Draw, places: int) -> Selection:
    """Tokens of `maskable` (bool[B, L]), each as likely as any other."""
    positions = tf.math.top_k(tf.where(maskable, _scores(draw, maskable.shape[1]), -1.0), k=places).indices
    return Selection(positions, positions)


def select_words(
    *, maskable: tf.Tensor, starts: tf.Tensor, count: tf.Tensor, draw: Draw, places: int
) -> Selection:
    """Whole words, in random order, as far as they fit; words of one token fill up what is left.

    Where there are too few of those, one word is chosen in part.

    Args:
        maskable: bool[B, L].
        starts: bool[B, L], whether a token begins a word.
        count: int32[B], how many tokens to choose: not more than are maskable.
        draw: Random bits.
        places: T.
    """
    length = maskable.shape[1]
    columns = tf.range(length)[None, :]
    # Words end where the next one starts; what cannot be chosen is none.
    before = tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
    starts = starts | ~maskable | ~before
    first_columns = tf.sort(tf.where(starts, columns, length), axis=1)
    word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
    start = tf.gather(first_columns, word, batch_dims=1)
    following = tf.pad(first_columns[:, 1:], [[0, 0], [0, 1]], constant_values=length)
    size = tf.gather(following, word, batch_dims=1) - start

    scores = _scores(draw, length)
    of_word = tf.where(maskable, tf.gather(scores, start, batch_dims=1), -1.0)
    # Equal scores keep the order of columns: a word's tokens stay together.
    order = tf.math.top_k(of_word, k=length).indices
    rank = tf.argsort(order, axis=1)
    whole = maskable & (tf.gather(rank, start, batch_dims=1) + size <= count[:, None])
    by_order = 1 - tf.cast(rank, tf.float32) / length
    preference = tf.where(whole, 4 + by_order, tf.where(size == 1, 2 + scores, by_order))
    positions = tf.math.top_k(tf.where(maskable, preference, -1.0), k=places).indices
    return Selection(positions, positions)


def select_spans(*, maskable: tf.Tensor, count: tf.Tensor, draw: Draw, places: int) -> Selection:
    """Spans of geometric lengths, every arrangement of them among the other tokens as likely as any other.

    The last span drawn is cut where the number of tokens is reached. A span runs on over tokens that cannot be chosen,
    such as special ones, which stay as they are.

    Args:
        maskable: bool[B, L].
        count: int32[B], how many tokens to choose: not more than are maskable.
        draw: Random bits.
        places: T.
    """
    length = maskable.shape[1]
    place = tf.range(places)[None, :]
    bits, _ = draw(np.arange(places, dtype=np.uint32)[None, :] + np.uint32(_LENGTHS))
    uniform = _uniform(bits)
    limits = np.cumsum(span_lengths())[:-1].astype(np.float32)
    lengths = 1 + tf.reduce_sum(tf.cast(uniform[..., None] >= limits, tf.int32), axis=-1)
    ends = tf.cumsum(lengths, axis=1)
    spans = tf.reduce_sum(tf.cast(ends - lengths < count[:, None], tf.int32), axis=1)[:, None]
    # The span that target number t belongs to.
    span = tf.reduce_sum(tf.cast(ends[:, None, :] <= place[..., None], tf.int32), axis=-1)

    # A row of maskable tokens is a sequence of slots: a span, or a single token between spans. Which of the slots are
    # the spans is a random choice; the n-th of these has as many single tokens before it as its number less n.
    unchosen = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1) - count
    slots = unchosen[:, None] + spans
    scores = tf.where(tf.range(length)[None, :] < slots, _scores(draw, length), -1.0)
    drawn = tf.where(place < spans, tf.math.top_k(scores, k=places).indices, 2 * length)
    singles_before = tf.sort(drawn, axis=1) - place
    singles = tf.gather(singles_before, tf.minimum(span, places - 1), batch_dims=1)

    used = place < count[:, None]
    columns = tf.sort(tf.where(maskable, tf.range(length)[None, :], length), axis=1)

    def column(number: tf.Tensor) -> tf.Tensor:
        """The column of each place's maskable token number `number`; for unused places, past the row."""
        found = tf.gather(columns, tf.clip_by_value(number, 0, length - 1), batch_dims=1)
        return tf.where(used, found, length)

    chosen_columns = column(singles + place)
    chosen = tf.reduce_any(chosen_columns[:, :, None] == tf.range(length), axis=1)
    preference = tf.where(chosen, 2 * length, length) - tf.range(length)
    first_of_span = tf.gather(ends - lengths, tf.minimum(span, places - 1), batch_dims=1)
    return Selection(
        tf.math.top_k(preference, k=places).indices, tf.minimum(column(singles + first_of_span), length - 1)
    )


def _scores(draw: Draw, length: int) -> tf.Tensor:
    bits, _ = draw(np.arange(length, dtype=np.uint32)[None, :])
    return _uniform(bits)


def _uniform(bits: tf.Tensor) -> tf.Tensor:
    """float32 in [0, 1) of the upper 24 bits, which are what a float32 holds exactly."""
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) / 2.0**24
