"""Training objectives: loss and accuracy sums of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tpu_trainer.network.cross_entropy import Sources, sums_of_sources
from tpu_trainer.network.dropout import DropoutKey
from tpu_trainer.network.masking import Masking
from tpu_trainer.network.model import LanguageModel
from tpu_trainer.network.random_bits import step_key
from tpu_trainer.network.transformer import Inputs

Batch = dict[str, tf.Tensor]
# Purposes of the random keys derived from a seed.
_TRAINING_MASKS, _EVALUATION_MASKS, _DROPOUT = 0, 1, 2


class Randomness(NamedTuple):
    """What determines a step's random choices: an evaluation's are those of step 0, without dropout."""

    seed: int
    step: tf.Tensor
    """Integer scalar: previous updates."""
    training: bool

    @property
    def masks(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The key of masks."""
        return step_key(self.seed, _TRAINING_MASKS if self.training else _EVALUATION_MASKS, self.step)

    def dropout(self, batch: Batch) -> DropoutKey | None:
        """Returns the key of dropout; None: there is none."""
        return DropoutKey(step_key(self.seed, _DROPOUT, self.step), batch["row"]) if self.training else None


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

    def sums(self, batch: Batch, randomness: Randomness) -> BatchSums:
        """Returns the sums of `batch` (see batches.py)."""
        return self.sums_by_source(batch, randomness, ())[0]

    @abstractmethod
    def sums_by_source(
        self, batch: Batch, randomness: Randomness, first_rows: Sequence[int]
    ) -> tuple[BatchSums, tf.Tensor]:
        """Returns the sums of `batch`, and those of each source.

        Args:
            batch: From batches.py.
            randomness: Determines masks and dropout.
            first_rows: The number of each source's first row, ascending from 0. (): no sources.

        Returns:
            The sums, and float32[sources, 4]: loss, correct, targets and tokens of padding of each source.
        """

    def attention_mask(self, batch: Batch) -> tf.Tensor | None:
        """Returns int32[B, L], 1 for real tokens; None if all tokens are real.

        In datasets without a mask, only a split's last row has padding, with the pad id (docs/dataset-format.md).
        """
        padding_id = self.model.vocabulary.padding_id
        if "attention_mask" in batch or padding_id is None:
            return batch.get("attention_mask")
        return tf.cast(batch["input_ids"] != padding_id, tf.int32)

    def _sums(
        self,
        batch: Batch,
        input_ids: tf.Tensor,
        randomness: Randomness,
        first_rows: Sequence[int],
        *,
        targets: tf.Tensor,
        weights: tf.Tensor,
        positions: tf.Tensor | None = None,
    ) -> tuple[BatchSums, tf.Tensor]:
        """Returns the sums of `sums_by_source`; for the arguments, see also LanguageModel.loss_sums."""
        attention_mask = self.attention_mask(batch)
        inputs = Inputs(
            input_ids,
            attention_mask,
            batch.get("position_ids"),
            batch.get("segment_ids"),
            randomness.dropout(batch),
        )
        sources = None
        if first_rows:
            is_after = batch["row"][:, None] >= tf.constant(first_rows[1:], tf.int32)
            sources = Sources(tf.reduce_sum(tf.cast(is_after, tf.int32), axis=1), len(first_rows))
        loss, correct, layers_loss, *by_source = self.model.loss_sums(
            inputs,
            targets=targets,
            weights=weights,
            positions=positions,
            training=randomness.training,
            sources=sources,
        )
        count = tf.reduce_sum(weights)
        # The layers' loss is a mean and only has to be trained: the reported loss is the cross-entropy.
        penalty = layers_loss * count
        real = tf.ones_like(input_ids) if attention_mask is None else attention_mask
        sums = BatchSums(
            loss + penalty - tf.stop_gradient(penalty),
            correct,
            count,
            tf.cast(tf.reduce_sum(real), tf.float32),
        )
        if sources is None:
            return sums, tf.zeros([0, 4])
        of_rows = tf.stack(
            [tf.reduce_sum(weights, axis=1), tf.cast(tf.reduce_sum(1 - real, axis=1), tf.float32)], axis=1
        )
        return sums, tf.concat([*by_source, sums_of_sources(of_rows, sources)], axis=1)


class MaskedLanguageModelling(Objective):
    """Predicts masked tokens from the tokens on both sides."""

    def __init__(self, *, model: LanguageModel, masking: Masking) -> None:
        super().__init__(model=model, predicted_positions=masking.max_targets)
        self._masking = masking

    def sums_by_source(
        self, batch: Batch, randomness: Randomness, first_rows: Sequence[int]
    ) -> tuple[BatchSums, tf.Tensor]:
        """See Objective."""
        attention_mask = self.attention_mask(batch)
        masked = self._masking(
            input_ids=batch["input_ids"],
            attention_mask=attention_mask,
            row=batch["row"],
            key=randomness.masks,
        )
        return self._sums(
            batch,
            masked.input_ids,
            randomness,
            first_rows,
            targets=masked.targets,
            weights=masked.weights,
            positions=masked.positions,
        )


class GivenTargets(Objective):
    """Predicts the targets that a batch names: those of texts whose likelihood is asked for.

    The batch has `targets`, int32[B, L]: the id to predict at each position, and -1 where there is none. Its
    `input_ids` are already masked.
    """

    def __init__(self, *, model: LanguageModel, max_length: int, single: bool) -> None:
        """`single`: a row has one target at most, and the output layer computes only its position."""
        super().__init__(model=model, predicted_positions=1 if single else max_length)
        self._single = single

    def sums_by_source(
        self, batch: Batch, randomness: Randomness, first_rows: Sequence[int]
    ) -> tuple[BatchSums, tf.Tensor]:
        """See Objective."""
        targets = tf.where((batch["row"] >= 0)[:, None], batch["targets"], -1)
        positions = None
        if self._single:
            positions = tf.argmax(targets, axis=1, output_type=tf.int32)[:, None]
            targets = tf.gather(targets, positions, batch_dims=1)
        return self._sums(
            batch,
            batch["input_ids"],
            randomness,
            first_rows,
            targets=tf.maximum(targets, 0),
            weights=tf.cast(targets >= 0, tf.float32),
            positions=positions,
        )


class CausalLanguageModelling(Objective):
    """Predicts each token from the preceding tokens of its document."""

    def __init__(self, *, model: LanguageModel, max_length: int) -> None:
        super().__init__(model=model, predicted_positions=max_length)

    def sums_by_source(
        self, batch: Batch, randomness: Randomness, first_rows: Sequence[int]
    ) -> tuple[BatchSums, tf.Tensor]:
        """See Objective.

        A token is a target if it and the preceding token are real and belong to the same document, and loss_mask, if
        there is one, marks it. Without segment_ids, a row is one document.

        Labels are shifted here and nowhere else: shards mark the tokens that are learned, and the prediction of a token
        is at the position before it. Example, with - for the pad id:

            input_ids    5 6 7 8 9 -
            segment_ids  1 1 1 2 2 0
            loss_mask    0 1 1 0 1 0
                          ╱ ╱ ╱ ╱ ╱
            targets      6 7 8 9 - 0
            weights      1 1 0 1 0 0
        """
        ids, segments = batch["input_ids"], batch.get("segment_ids")
        attention_mask = self.attention_mask(batch)
        counts = tf.broadcast_to((batch["row"] >= 0)[:, None], ids[:, 1:].shape)
        if attention_mask is not None:
            counts &= (attention_mask[:, :-1] > 0) & (attention_mask[:, 1:] > 0)
        if segments is not None:
            counts &= segments[:, :-1] == segments[:, 1:]
        if "loss_mask" in batch:
            counts &= batch["loss_mask"][:, 1:] > 0
        # The last position predicts nothing. It is kept so that the length remains a round number.
        nothing = tf.zeros_like(ids[:, :1])
        weights = tf.concat([tf.cast(counts, tf.float32), tf.cast(nothing, tf.float32)], axis=1)
        return self._sums(
            batch,
            ids,
            randomness,
            first_rows,
            targets=tf.concat([ids[:, 1:], nothing], axis=1),
            weights=weights,
        )
