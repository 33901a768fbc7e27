"""Selects the tokens of a row to predict: single tokens, whole words or spans; always exactly `count` tokens.

All shapes are static: a row has T = `max_targets` slots for targets and uses the first `count`. Random bits are a
function of the row and a counter, so a row's selection does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

# First counter of the span lengths; the other counters are columns, below 2**20.
_LENGTHS = 1 << 28
# Joshi et al., "SpanBERT" (2019), 3.1: lengths have a geometric distribution, truncated at 10.
SPAN_PROBABILITY, MAX_SPAN = 0.2, 10

Draw = Callable[[tf.Tensor | np.ndarray], tuple[tf.Tensor, tf.Tensor]]
"""Maps counters, uint32[1 or B, n], to two arrays of random bits, uint32[B, n]."""


class Selection(NamedTuple):
    """The selected tokens of B rows. Unused slots have distinct tokens that are not selected."""

    positions: tf.Tensor
    """int32[B, T], columns of the tokens."""
    units: tf.Tensor
    """int32[B, T], first columns of the units, which are replaced as a whole: the token itself, or its span."""


def span_lengths() -> np.ndarray:
    """Returns the probabilities of the lengths 1 to MAX_SPAN, float64[MAX_SPAN]."""
    weights = SPAN_PROBABILITY * (1 - SPAN_PROBABILITY) ** np.arange(MAX_SPAN)
    return weights / weights.sum()


def select_tokens(*, maskable: tf.Tensor, draw: Draw, max_targets: int) -> Selection:
    """Selects tokens of `maskable` (bool[B, L]) with equal probabilities."""
    positions = tf.math.top_k(
        tf.where(maskable, _scores(draw, maskable.shape[1]), -1.0), k=max_targets
    ).indices
    return Selection(positions, positions)


def select_words(
    *, maskable: tf.Tensor, starts: tf.Tensor, count: tf.Tensor, draw: Draw, max_targets: int
) -> Selection:
    """Selects whole words, in random order, as long as they fit; then words of one token for the remaining slots.

    If there are too few words of one token, one word is selected in part.

    Example: the words "a b", "c" and "d e f" and count 3. In the random order "d e f", "a b", "c", the first word fits.
    In the order "a b", "d e f", "c", the first two words have five tokens: "a b" fits and is selected, then "c".

    Args:
        maskable: bool[B, L].
        starts: bool[B, L], whether a token begins a word.
        count: int32[B], the number of tokens to select, at most the number of maskable tokens.
        draw: Random bits.
        max_targets: T.
    """
    length = maskable.shape[1]
    columns = tf.range(length)[None, :]
    # A word ends before the next one starts. A token that is not maskable belongs to no word.
    maskable_before = tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
    starts = starts | ~maskable | ~maskable_before
    first_columns = tf.sort(tf.where(starts, columns, length), axis=1)
    word = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
    start = tf.gather(first_columns, word, batch_dims=1)
    following = tf.pad(first_columns[:, 1:], [[0, 0], [0, 1]], constant_values=length)
    size = tf.gather(following, word, batch_dims=1) - start

    # All tokens of a word have the random score of its first. top_k is stable, so a word's tokens stay together.
    scores = _scores(draw, length)
    word_scores = tf.where(maskable, tf.gather(scores, start, batch_dims=1), -1.0)
    order = tf.math.top_k(word_scores, k=length).indices
    rank = tf.argsort(order, axis=1)
    # The words whose last token is among the first `count` fit as a whole.
    fits = maskable & (tf.gather(rank, start, batch_dims=1) + size <= count[:, None])
    # Prefer words that fit (4 to 5), then words of one token (2 to 3), then the others in their order (0 to 1).
    by_order = 1 - tf.cast(rank, tf.float32) / length
    preference = tf.where(fits, 4 + by_order, tf.where(size == 1, 2 + scores, by_order))
    positions = tf.math.top_k(tf.where(maskable, preference, -1.0), k=max_targets).indices
    return Selection(positions, positions)


def select_spans(*, maskable: tf.Tensor, count: tf.Tensor, draw: Draw, max_targets: int) -> Selection:
    """Selects spans of geometric lengths. All arrangements of the spans among the other tokens are equally probable.

    The last span drawn is truncated to reach `count` tokens. A span continues across tokens that are not maskable, such
    as special tokens, without selecting them.

    Example: 8 maskable tokens, count 5, lengths drawn 2, 4, …: the spans are 2 and 3 (truncated) tokens, and 3 tokens
    stay single. Of 5 items, say items 1 and 3 are the spans: . X X . X X X .  The spans are preceded by 1 and 2 single
    tokens, so targets 0 to 4 are maskable tokens 1, 2, 4, 5 and 6.

    Args:
        maskable: bool[B, L].
        count: int32[B], the number of tokens to select, at most the number of maskable tokens.
        draw: Random bits.
        max_targets: T.
    """
    # Draw span lengths, and use the first `spans` of them, which reach `count` tokens.
    length = maskable.shape[1]
    place = tf.range(max_targets)[None, :]
    bits, _ = draw(np.arange(max_targets, dtype=np.uint32)[None, :] + np.uint32(_LENGTHS))
    uniform = _uniform(bits)
    limits = np.cumsum(span_lengths())[:-1].astype(np.float32)
    lengths = 1 + tf.reduce_sum(tf.cast(uniform[..., None] >= limits, tf.int32), axis=-1)
    ends = tf.cumsum(lengths, axis=1)
    spans = tf.reduce_sum(tf.cast(ends - lengths < count[:, None], tf.int32), axis=1)[:, None]
    # The span of target t is the number of spans that end at or before t.
    span = tf.reduce_sum(tf.cast(ends[:, None, :] <= place[..., None], tf.int32), axis=-1)

    # The maskable tokens of a row are a sequence of items: spans, and single tokens that are not selected. A random
    # subset of the items are the spans. If span n is item i, then i - n single tokens precede it.
    num_unselected = tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1) - count
    items = num_unselected[:, None] + spans
    scores = tf.where(tf.range(length)[None, :] < items, _scores(draw, length), -1.0)
    drawn = tf.where(place < spans, tf.math.top_k(scores, k=max_targets).indices, 2 * length)
    singles_before = tf.sort(drawn, axis=1) - place
    singles = tf.gather(singles_before, tf.minimum(span, max_targets - 1), batch_dims=1)

    # Target t is maskable token t + (single tokens before its span); look up that token's column.
    is_used = place < count[:, None]
    columns = tf.sort(tf.where(maskable, tf.range(length)[None, :], length), axis=1)

    def column(number: tf.Tensor) -> tf.Tensor:
        """Returns the column of maskable token `number` for each slot; L for unused slots."""
        selected_column = tf.gather(columns, tf.clip_by_value(number, 0, length - 1), batch_dims=1)
        return tf.where(is_used, selected_column, length)

    # Selected columns come first, in ascending order, then the others.
    selected_columns = column(singles + place)
    is_selected = tf.reduce_any(selected_columns[:, :, None] == tf.range(length), axis=1)
    preference = tf.where(is_selected, 2 * length, length) - tf.range(length)
    first_of_span = tf.gather(ends - lengths, tf.minimum(span, max_targets - 1), batch_dims=1)
    return Selection(
        tf.math.top_k(preference, k=max_targets).indices,
        tf.minimum(column(singles + first_of_span), length - 1),
    )


def _scores(draw: Draw, length: int) -> tf.Tensor:
    bits, _ = draw(np.arange(length, dtype=np.uint32)[None, :])
    return _uniform(bits)


def _uniform(bits: tf.Tensor) -> tf.Tensor:
    """Returns float32 values in [0, 1) from the upper 24 bits, which float32 represents exactly."""
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) / 2.0**24
