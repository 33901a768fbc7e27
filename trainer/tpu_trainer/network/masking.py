"""Masked language modelling's targets, chosen on the device, inside the step.

A row's masks are a function of (key, row id): not of the batch it stands in, nor of the replica. All shapes are static:
each row has `max_targets` places, of which the first K are used, with weight 1.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.config import MaskingUnit
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.errors import UsageError
from tpu_trainer.network.random_bits import threefry2x32
from tpu_trainer.network.selection import Draw, Selection, select_spans, select_tokens, select_words

# Devlin et al., "BERT" (2018), 3.1: of the chosen tokens 80% become the mask token, 10% a random one, 10% stay.
_MASKED, _RANDOM = 0.8, 0.1
# Columns are below this; it separates the draw for the replacement from the draw for the choice.
_REPLACEMENT = 1 << 31


class MaskedRows(NamedTuple):
    """What the model sees and what it has to predict; B rows of L tokens, T targets at most in each."""

    input_ids: tf.Tensor
    """int32[B, L], with the chosen tokens replaced."""
    positions: tf.Tensor
    """int32[B, T]: where the targets stand."""
    targets: tf.Tensor
    """int32[B, T]: the original tokens there."""
    weights: tf.Tensor
    """float32[B, T]: 1 for a target, 0 for an unused place."""


def targets_by_length(max_length: int, probability: float) -> np.ndarray:
    """int32[max_length + 1]: how many tokens to predict in a row of n real tokens: probability · n, half rounded up.

    A table, worked out in decimals: in float32 the product of 0.15 and 10 may round either way.
    """
    share = Decimal(str(probability))
    return np.array(
        [int((share * n).quantize(Decimal(1), rounding=ROUND_HALF_UP)) for n in range(max_length + 1)],
        np.int32,
    )


class Masking:
    """Chooses the tokens to predict and replaces them."""

    def __init__(
        self, *, vocabulary: Vocabulary, max_length: int, probability: float, unit: MaskingUnit = "token"
    ) -> None:
        """
        Args:
            vocabulary: Special ids are never chosen and never drawn as a replacement.
            max_length: Tokens in a row.
            probability: Share of a row's real tokens to predict.
            unit: What is chosen.

        Raises:
            UsageError: Words are wanted of a tokenizer that does not tell where they begin.
        """
        if unit == "word" and vocabulary.words is None:
            raise UsageError(
                "--mlm.unit is 'word': the tokenizer does not tell in its tokens where words begin, as WordPiece, "
                "byte-level and Metaspace tokenizers do"
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

        Exactly min(round(probability · real tokens), maskable tokens) are chosen in each row; maskable are real
        tokens that are not special.

        Args:
            input_ids: int32[B, L].
            attention_mask: int32[B, L], 1 for real tokens; None: all are real.
            row: int32[B], the rows' ids; a negative one marks a row that has no targets.
            key: Two uint32 scalars, such as random_bits.step_key gives.
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
        chosen = tf.range(self.max_targets)[None, :] < count[:, None]

        targets = tf.gather(input_ids, positions, batch_dims=1)
        replacement_counter = tf.constant(_REPLACEMENT, tf.uint32)
        decision_bits, _ = draw(tf.cast(units, tf.uint32) + replacement_counter)
        _, token_bits = draw(tf.cast(positions, tf.uint32) + replacement_counter)
        decision = tf.cast(decision_bits, tf.float32) / 2.0**32
        # The remainder favours the first ids by less than one part in 2**32 / vocabulary.
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
            tf.where(chosen, replacement, targets),
        )
        return MaskedRows(corrupted, positions, targets, tf.cast(chosen, tf.float32))

    def _select(self, input_ids: tf.Tensor, maskable: tf.Tensor, count: tf.Tensor, draw: Draw) -> Selection:
        if self._unit == "token":
            return select_tokens(maskable=maskable, draw=draw, places=self.max_targets)
        if self._unit == "span":
            return select_spans(maskable=maskable, count=count, draw=draw, places=self.max_targets)
        joins, ends_open = (tf.gather(table, input_ids) for table in (self._words.joins, self._words.open))
        starts = ~(joins & tf.pad(ends_open[:, :-1], [[0, 0], [1, 0]]))
        return select_words(maskable=maskable, starts=starts, count=count, draw=draw, places=self.max_targets)
