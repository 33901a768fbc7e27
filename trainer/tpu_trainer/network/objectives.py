"""Training objectives: loss and accuracy sums of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import tensorflow as tf

from tpu_trainer.network.masking import Masking
from tpu_trainer.network.model import Inputs, LanguageModel

Batch = dict[str, tf.Tensor]
Key = tuple[tf.Tensor, tf.Tensor]


class BatchSums(NamedTuple):
    """Sums over a batch, float32 scalars."""

    loss: tf.Tensor
    """Cross-entropy of all targets, in nats."""
    correct: tf.Tensor
    """Number of targets predicted correctly."""
    targets: tf.Tensor
    """Number of targets."""
    tokens: tf.Tensor
    """Number of tokens without padding."""


class Objective(ABC):
    """Selects a batch's targets and computes the loss of the model's predictions."""

    def __init__(self, *, model: LanguageModel, predicted_positions: int) -> None:
        self.model = model
        self.predicted_positions = predicted_positions
        """Number of positions per row that the output layer computes."""

    @abstractmethod
    def sums(self, batch: Batch, *, key: Key, training: bool) -> BatchSums:
        """Returns the sums of `batch` (see batches.py). `key` determines all random choices."""

    def attention_mask(self, batch: Batch) -> tf.Tensor | None:
        """Returns int32[B, L], 1 for real tokens; None if all tokens are real.

        In datasets without a mask, only a split's last row has padding, with the pad id (docs/dataset-format.md).
        """
        padding_id = self.model.vocabulary.padding_id
        if "attention_mask" in batch or padding_id is None:
            return batch.get("attention_mask")
        return tf.cast(batch["input_ids"] != padding_id, tf.int32)


class MaskedLanguageModelling(Objective):
    """Predicts masked tokens from the tokens on both sides."""

    def __init__(self, *, model: LanguageModel, masking: Masking) -> None:
        super().__init__(model=model, predicted_positions=masking.max_targets)
        self._masking = masking

    def sums(self, batch: Batch, *, key: Key, training: bool) -> BatchSums:
        """See Objective."""
        attention_mask = self.attention_mask(batch)
        masked = self._masking(
            input_ids=batch["input_ids"], attention_mask=attention_mask, row=batch["row"], key=key
        )
        loss, correct = self.model.loss_sums(
            Inputs(masked.input_ids, attention_mask, batch.get("position_ids"), training=training),
            targets=masked.targets,
            weights=masked.weights,
            positions=masked.positions,
        )
        return BatchSums(loss, correct, tf.reduce_sum(masked.weights), _real_tokens(batch, attention_mask))


class CausalLanguageModelling(Objective):
    """Predicts each token from the preceding tokens of its document."""

    def __init__(self, *, model: LanguageModel, max_length: int) -> None:
        super().__init__(model=model, predicted_positions=max_length)

    def sums(self, batch: Batch, *, key: Key, training: bool) -> BatchSums:
        """See Objective.

        A token is a target if it and the preceding token are real and belong to the same document. Without segment_ids,
        a row is one document.

        Example, with - for the pad id:
            input_ids    5 6 7 8 9 -
            segment_ids  0 0 0 1 1 1
            targets      6 7 8 9 - 0
            weights      1 1 0 1 0 0
        """
        del key
        ids, segments = batch["input_ids"], batch.get("segment_ids")
        attention_mask = self.attention_mask(batch)
        counts = tf.broadcast_to((batch["row"] >= 0)[:, None], ids[:, 1:].shape)
        if attention_mask is not None:
            counts &= (attention_mask[:, :-1] > 0) & (attention_mask[:, 1:] > 0)
        if segments is not None:
            counts &= segments[:, :-1] == segments[:, 1:]
        # The last position predicts nothing. It is kept so that the length remains a round number.
        nothing = tf.zeros_like(ids[:, :1])
        weights = tf.concat([tf.cast(counts, tf.float32), tf.cast(nothing, tf.float32)], axis=1)
        loss, correct = self.model.loss_sums(
            Inputs(ids, attention_mask, batch.get("position_ids"), segments, training),
            targets=tf.concat([ids[:, 1:], nothing], axis=1),
            weights=weights,
        )
        return BatchSums(loss, correct, tf.reduce_sum(weights), _real_tokens(batch, attention_mask))


def _real_tokens(batch: Batch, attention_mask: tf.Tensor | None) -> tf.Tensor:
    real = tf.ones_like(batch["input_ids"]) if attention_mask is None else attention_mask
    return tf.cast(tf.reduce_sum(real), tf.float32)
