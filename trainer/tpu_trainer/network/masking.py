"""Selects and replaces the targets of masked language modelling on the device, within the step.

A row's masks are a function of (key, row id), not of its batch or replica. All shapes are static: each row has
`max_targets` slots, and the first K have weight 1.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.config import MaskingUnit
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.random_bits import threefry2x32
from tpu_trainer.network.selection import Draw, Selection, select_spans, select_tokens, select_words
from tpu_trainer.support.errors import UsageError

# Devlin et al., "BERT" (2018), 3.1: 80% of selected tokens become the mask token, 10% a random one, 10% stay unchanged.
_MASKED, _RANDOM = 0.8, 0.1
# Added to the counters of replacements, so that they differ from the counters of selection, which are smaller.
_REPLACEMENT = 1 << 31


class MaskedRows(NamedTuple):
    """B rows of L tokens with at most T targets each."""

    input_ids: tf.Tensor
    """int32[B, L], with the selected tokens replaced."""
    positions: tf.Tensor
    """int32[B, T], columns of the targets."""
    targets: tf.Tensor
    """int32[B, T], the original tokens."""
    weights: tf.Tensor
    """float32[B, T], 1 for targets, 0 for unused slots."""


def targets_by_length(max_length: int, probability: float) -> np.ndarray:
    """Returns the number of targets in a row of n real tokens, for n up to `max_length`: int32[max_length + 1].

    It is probability · n, half rounded up, computed in decimal: in float32, 0.15 · 10 could round either way.
    """
    share = Decimal(str(probability))
    return np.array(
        [int((share * n).quantize(Decimal(1), rounding=ROUND_HALF_UP)) for n in range(max_length + 1)],
        np.int32,
    )


class Masking:
    """Selects the tokens to predict and replaces them."""

    def __init__(
        self, *, vocabulary: Vocabulary, max_length: int, probability: float, unit: MaskingUnit = "token"
    ) -> None:
        """
        Args:
            vocabulary: Special ids are never selected and never used as a replacement.
            max_length: Tokens in a row.
            probability: Fraction of a row's real tokens to predict.
            unit: Unit of selection.

        Raises:
            UsageError: If the unit is "word" and the tokenizer's tokens do not show where words begin.
        """
        if unit == "word" and vocabulary.words is None:
            raise UsageError(
                "--mlm.unit is 'word', but the tokenizer's tokens do not show where words begin; use a WordPiece, "
                "byte-level or Metaspace tokenizer, or another unit"
            )
        self._unit = unit
        self._words = vocabulary.words
        self._targets_by_length = targets_by_length(max_length, probability)
        self._special_ids = np.array(vocabulary.special_ids, np.int32)
        self._replacements = np.setdiff1d(np.arange(vocabulary.size, dtype=np.int32), self._special_ids)
        self._mask_id = vocabulary.mask_id
        self.max_targets = int(self._targets_by_length[-1])

    def __call__(
        self,
        *,
        input_ids: tf.Tensor,
        attention_mask: tf.Tensor | None,
        row: tf.Tensor,
        key: tuple[tf.Tensor, tf.Tensor],
    ) -> MaskedRows:
        """Masks a batch.

        Selects exactly min(round(probability · real tokens), maskable tokens) in each row. Real tokens other than
        special tokens are maskable.

        Example: input_ids [[CLS, 7, 8, 9, SEP, PAD]] with probability 0.4 have 0.4 · 5 = 2 targets. If they are in
        columns 3 and 1, and the mask token replaces the first and nothing the second, the result has
            input_ids [[CLS, 7, 8, MASK, SEP, PAD]]
            positions [[3, 1]], targets [[9, 7]], weights [[1, 1]]

        Args:
            input_ids: int32[B, L].
            attention_mask: int32[B, L], 1 for real tokens; None: all are real.
            row: int32[B], the rows' ids; rows with negative ids get no targets.
            key: Two uint32 scalars, such as the result of random_bits.step_key.
        """
        batch = input_ids.shape[0]
        real = tf.ones_like(input_ids) if attention_mask is None else attention_mask
        special = tf.reduce_any(input_ids[..., None] == self._special_ids, axis=-1)
        maskable = (real > 0) & ~special & (row >= 0)[:, None]
        count = tf.minimum(
            tf.gather(self._targets_by_length, tf.reduce_sum(real, axis=1)),
            tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1),
        )

        counter_row = tf.cast(row, tf.uint32)[:, None]

        def draw(counter: tf.Tensor | np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
            return threefry2x32(key, (counter_row, counter))

        positions, units = self._select(input_ids, maskable, count, draw)
        is_target = tf.range(self.max_targets)[None, :] < count[:, None]

        targets = tf.gather(input_ids, positions, batch_dims=1)
        replacement_counter = tf.constant(_REPLACEMENT, tf.uint32)
        decision_bits, _ = draw(tf.cast(units, tf.uint32) + replacement_counter)
        _, token_bits = draw(tf.cast(positions, tf.uint32) + replacement_counter)
        decision = tf.cast(decision_bits, tf.float32) / 2.0**32
        # The bias of the remainder towards low ids is below vocabulary / 2**32.
        drawn = tf.cast(token_bits % tf.constant(len(self._replacements), tf.uint32), tf.int32)
        replacement = tf.where(
            decision < _MASKED,
            tf.constant(self._mask_id, tf.int32),
            tf.where(decision < _MASKED + _RANDOM, tf.gather(self._replacements, drawn), targets),
        )
        rows_index = tf.broadcast_to(tf.range(batch)[:, None], positions.shape)
        corrupted = tf.tensor_scatter_nd_update(
            input_ids,
            tf.stack([rows_index, positions], axis=-1),
            tf.where(is_target, replacement, targets),
        )
        return MaskedRows(corrupted, positions, targets, tf.cast(is_target, tf.float32))

    def _select(self, input_ids: tf.Tensor, maskable: tf.Tensor, count: tf.Tensor, draw: Draw) -> Selection:
        if self._unit == "token":
            return select_tokens(maskable=maskable, draw=draw, max_targets=self.max_targets)
        if self._unit == "span":
            return select_spans(maskable=maskable, count=count, draw=draw, max_targets=self.max_targets)
        starts_inside, ends_inside = (
            tf.gather(table, input_ids)
            for table in (self._words.starts_inside_word, self._words.ends_inside_word)
        )
        starts = ~(starts_inside & tf.pad(ends_inside[:, :-1], [[0, 0], [1, 0]]))
        return select_words(
            maskable=maskable, starts=starts, count=count, draw=draw, max_targets=self.max_targets
        )
