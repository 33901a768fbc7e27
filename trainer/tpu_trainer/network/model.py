"""The language model: a network that computes losses and logits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tpu_trainer.config import ObjectiveName
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.cross_entropy import OutputWeights, Sources, cross_entropy_sums, mask_padded_ids
from tpu_trainer.network.decoding import Cache, decode
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.transformer import Computation, Inputs, head_input, hidden_states
from tpu_trainer.network.weights import Network
from tpu_trainer.support.errors import UsageError


class LanguageModel:
    """A network that computes losses, and logits only at selected positions."""

    def __init__(
        self,
        *,
        network: Network,
        vocabulary: Vocabulary,
        objective: ObjectiveName = "mlm",
        computation: Computation | None = None,
        z_loss: float = 0.0,
    ) -> None:
        """
        Args:
            network: Of vocabulary size `vocabulary.size` or `vocabulary.padded_size`.
            vocabulary: The tokenizer's vocabulary.
            objective: The network's objective.
            computation: How to compute it; None: in float32.
            z_loss: The factor of the z-loss in the gradient; see `cross_entropy_sums`.
        """
        self.network = network
        self.vocabulary = vocabulary
        self.objective = objective
        self.computation = computation or Computation()
        self._z_loss = z_loss

    def loss_sums(
        self,
        inputs: Inputs,
        *,
        targets: tf.Tensor,
        weights: tf.Tensor,
        positions: tf.Tensor | None = None,
        training: bool = False,
        sources: Sources | None = None,
    ) -> tuple[tf.Tensor, ...]:
        """Returns the weighted sums of the cross-entropy, in nats, and of correct predictions, and the layers' loss.

        They are float32 scalars. With `sources`, also returns both sums of each source: float32[count, 2].

        Args:
            inputs: B rows of L tokens.
            targets: int32[B, T].
            weights: float32[B, T].
            positions: int32[B, T], positions of the targets; None: all, T = L.
            training: Whether gradients follow.
            sources: The source of each row, int32[B].
        """
        values, division = self._values(), self.computation.division
        if positions is not None:
            unused = [[0, 0], [0, -targets.shape[1] % division.sequence]]
            positions, targets, weights = (tf.pad(x, unused) for x in (positions, targets, weights))
        elif (order := division.order(self.network.architecture, targets.shape[1])) is not None:
            inputs = inputs.ordered(order)
            targets, weights = (tf.gather(x, order, axis=1) for x in (targets, weights))
        if sources is not None:
            numbers = division.by_row_group(tf.broadcast_to(sources.numbers[:, None], targets.shape))
            sources = Sources(tf.reshape(division.by_group(numbers), [-1]), sources.count)
        targets, weights = map(division.by_row_group, (targets, weights))
        hidden, layers_loss = self._hidden(values, inputs, positions, training=training)
        loss, correct, *by_source = cross_entropy_sums(
            hidden=tf.reshape(division.by_group(hidden), [-1, hidden.shape[-1]]),
            output=self._output(values),
            targets=tf.reshape(division.by_group(targets), [-1]),
            weights=tf.reshape(division.by_group(weights), [-1]),
            size=self.vocabulary.size,
            training=training,
            z_loss=self._z_loss,
            shards=division.groups,
            sources=sources,
        )
        return loss, correct, layers_loss, *by_source

    def logits_at(self, inputs: Inputs, *, positions: tf.Tensor | None = None) -> tf.Tensor:
        """Returns float32[B, T, V] logits at `positions` (int32[B, T]; None: at all).

        Ids that pad the vocabulary get probability 0.
        """
        values = self._values()
        hidden, _ = self._hidden(values, inputs, positions, training=False)
        return self._logits(values, hidden)

    def next_logits(
        self, input_ids: tf.Tensor, cache: Cache, *, start: tf.Tensor, last: tf.Tensor
    ) -> tuple[tf.Tensor, Cache]:
        """Returns float32[B, V] logits of the tokens after those at `last`, and the cache with all of `input_ids`.

        Args:
            input_ids: int32[B, T], after the `start` cached tokens of their rows.
            cache: Of the tokens before.
            start: int32[B].
            last: int32[B], columns of `input_ids`.
        """
        values, architecture = self._values(), self.network.architecture
        hidden, cache = decode(architecture, values, input_ids, cache, start=start)
        hidden = head_input(architecture, values, tf.gather(hidden, last[:, None], batch_dims=1))
        return self._logits(values, hidden)[:, 0], cache

    def _logits(self, values: Mapping[str, tf.Tensor], hidden: tf.Tensor) -> tf.Tensor:
        output = self._output(values)
        logits = tf.einsum("bth,vh->btv", tf.cast(hidden, tf.float32), output.matrix)
        if output.soft_cap is not None:
            logits = output.soft_cap * tf.tanh((logits + output.bias) / output.soft_cap) - output.bias
        return logits + mask_padded_ids(output.bias, self.vocabulary.size)

    def _values(self) -> Mapping[str, tf.Tensor]:
        return {name: tf.convert_to_tensor(weight) for name, weight in self.network.weights.items()}

    def _hidden(
        self, values: Mapping[str, tf.Tensor], inputs: Inputs, positions: tf.Tensor | None, *, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the input of the output matrix at `positions`, and the layers' loss."""
        division = self.computation.division
        hidden, loss = hidden_states(
            self.network.architecture, values, inputs, self.computation, training=training
        )
        if positions is not None:
            hidden = division.by_token(tf.gather(hidden, positions, batch_dims=1))
        return head_input(self.network.architecture, values, hidden, division), loss

    def _output(self, values: Mapping[str, tf.Tensor]) -> OutputWeights:
        architecture = self.network.architecture
        matrix = values["embeddings.tokens.weight" if architecture.tied else "head.weight"]
        bias = values.get("head.bias")
        return OutputWeights(
            matrix, tf.zeros(matrix.shape[:1]) if bias is None else bias, architecture.head.soft_cap
        )

    def init_output_bias(self, target_counts: np.ndarray, initial: InitialValues | None = None) -> None:
        """Sets the output bias to the log frequencies of the targets.

        Args:
            target_counts: float[V], how often each id is a target in the training split.
            initial: Has the weights' values.

        Raises:
            UsageError: If the model has no output bias.
        """
        bias = self.network.weights.get("head.bias")
        if bias is None:
            raise UsageError(
                "--model.init_output_bias: models of this type have no output bias; omit the option"
            )
        counts = target_counts + 1  # a token that did not occur may still occur
        values = np.zeros(bias.shape, np.float32)
        values[: self.vocabulary.size] = np.log(counts / counts.sum())
        (initial or InitialValues()).assign(bias, lambda: values)
