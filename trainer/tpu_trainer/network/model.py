"""The language model: a Hugging Face TensorFlow model with corrected vocabulary, positions and loss."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras
from transformers import (
    PretrainedConfig,
    TFAutoModelForCausalLM,
    TFAutoModelForMaskedLM,
    TFPreTrainedModel,
)

from tpu_trainer.config import ModelConfig, ObjectiveName, Precision
from tpu_trainer.data.vocabulary import Vocabulary
from tpu_trainer.network.call_context import CallContext
from tpu_trainer.network.cross_entropy import cross_entropy_sums, mask_padded_ids
from tpu_trainer.network.hf_config import INFER_PADDING, first_position, network_config
from tpu_trainer.network.initial_values import InitialValues
from tpu_trainer.network.initial_weights import initialize_as_pytorch
from tpu_trainer.network.output_layer import find_head, find_output_layer
from tpu_trainer.network.patches import patching as patches
from tpu_trainer.network.patches.patching import MemoryOptions
from tpu_trainer.support.errors import UsageError

_AUTO_CLASSES = {"mlm": TFAutoModelForMaskedLM, "clm": TFAutoModelForCausalLM}
# Their masks and positions stay float32 under mixed_bfloat16.
_FLOAT32_ONLY = frozenset(("ctrl", "mistral"))
# They accept position_ids but ignore them.
_IGNORE_POSITION_IDS = frozenset(("opt",))


def build_network(
    config: PretrainedConfig, objective: ObjectiveName, *, name: str = "network"
) -> TFPreTrainedModel:
    """Returns the network of `config`, built, with the variable names that Hugging Face's formats require."""
    # Without a fixed name, Keras would number the networks, and the names end up in exports.
    network = _AUTO_CLASSES[objective].from_config(config, name=name)
    network.build_in_name_scope()
    return network


class Inputs(NamedTuple):
    """A network's inputs: B rows of L tokens."""

    input_ids: tf.Tensor
    """int32[B, L]."""
    attention_mask: tf.Tensor | None = None
    """int32[B, L], 1 for real tokens; None: all are real."""
    position_ids: tf.Tensor | None = None
    """int32[B, L], starting from 0; None: the row is one document."""
    segment_ids: tf.Tensor | None = None
    """int32[B, L], the number of each token's document; None: the row is one document. Only causal models use it."""
    training: bool = False
    """Whether dropout applies."""


class LanguageModel:
    """A network that computes losses, and logits only at selected positions."""

    def __init__(
        self,
        *,
        network: TFPreTrainedModel,
        vocabulary: Vocabulary,
        objective: ObjectiveName = "mlm",
        memory: MemoryOptions | None = None,
        shards: int = 1,
    ) -> None:
        """
        Args:
            network: A built TF…ForMaskedLM or TF…ForCausalLM of vocabulary size `vocabulary.size` or
                `vocabulary.padded_size`.
            vocabulary: The tokenizer's vocabulary.
            objective: The network's objective.
            memory: Options to save memory; None: keep all activations for the backward pass.
            shards: Groups of devices that divide the rows in one program.

        Raises:
            UsageError: If models of this type do not support `memory`.
        """
        self.network = network
        self.vocabulary = vocabulary
        self.objective = objective
        self._shards = shards
        self.context = CallContext()
        """The values that dropout depends on. The caller sets them in training."""
        self._separates_documents = patches.apply(
            network, self.context, separate_documents_of_rows=objective == "clm", memory=memory
        )
        self._first_position = first_position(network.config.model_type, vocabulary)
        self._head = find_head(network)
        self._output = find_output_layer(network)
        encoder = getattr(network, network.base_model_prefix)
        self._accepted = frozenset(inspect.signature(encoder.call).parameters)
        if network.config.model_type in _IGNORE_POSITION_IDS:
            self._accepted -= {"position_ids"}
        for layer in network.submodules:
            # The TensorFlow classes of the RoBERTa family always count positions from padding id 1; the PyTorch
            # classes use the tokenizer's.
            if self._first_position and hasattr(layer, "padding_idx"):
                layer.padding_idx = vocabulary.pad_id

    @classmethod
    def create(
        cls,
        config: ModelConfig,
        *,
        objective: ObjectiveName = "mlm",
        vocabulary: Vocabulary,
        max_length: int,
        seed: int,
        precision: Precision = "float32",
        memory: MemoryOptions | None = None,
        shards: int = 1,
        initial: InitialValues | None = None,
    ) -> LanguageModel:
        """Returns a new model; raises UsageError for an invalid `config`.

        Its weights, whose values are in `initial`, are a function of `seed`.
        """
        if precision == "mixed_bfloat16" and config.type in _FLOAT32_ONLY:
            raise UsageError(
                f"--train.precision is {precision!r}: transformers' TensorFlow class of {config.type!r} does not "
                "support it, because it combines float32 and bfloat16 tensors; use float32"
            )
        hf_config = network_config(config, objective=objective, vocabulary=vocabulary, max_length=max_length)
        keras.utils.set_random_seed(seed)
        # Layers take the global policy when they are created, which Hugging Face does.
        policy = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy(precision)
        try:
            network = build_network(hf_config, objective)
            initialize_as_pytorch(network, seed=seed, initial=initial or InitialValues())
        finally:
            keras.mixed_precision.set_global_policy(policy)
        return cls(network=network, vocabulary=vocabulary, objective=objective, memory=memory, shards=shards)

    def new_network(self) -> TFPreTrainedModel:
        """Returns another, unpatched network of the same configuration, to hold the average of the weights."""
        return build_network(self.network.config, self.objective, name="average")

    def loss_sums(
        self, inputs: Inputs, *, targets: tf.Tensor, weights: tf.Tensor, positions: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weighted sums of the cross-entropy, in nats, and of correct predictions: float32 scalars.

        Args:
            inputs: B rows of L tokens.
            targets: int32[B, T].
            weights: float32[B, T].
            positions: int32[B, T], positions of the targets; None: all, T = L.
        """
        targets, weights = tf.reshape(targets, [-1]), tf.reshape(weights, [-1])
        if self._output is None:
            logits = self._masked_logits(self._logits(inputs, positions))
            logits = tf.reshape(logits, [-1, logits.shape[-1]])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
            right = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == targets, tf.float32)
            return tf.reduce_sum(losses * weights), tf.reduce_sum(right * weights)
        hidden = self._output.transform(self._hidden(inputs, positions))
        return cross_entropy_sums(
            hidden=tf.reshape(hidden, [-1, hidden.shape[-1]]),
            output=self._output.weights(),
            targets=targets,
            weights=weights,
            size=self.vocabulary.size,
            training=inputs.training,
            shards=self._shards,
        )

    def logits_at(
        self,
        *,
        input_ids: tf.Tensor,
        positions: tf.Tensor,
        attention_mask: tf.Tensor | None = None,
        position_ids: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """Returns float32[B, T, V] logits at `positions` (int32[B, T]); the other arguments are those of Inputs.

        If the model's head is a separate layer, it computes only these positions. Ids that pad the vocabulary get
        probability 0.
        """
        inputs = Inputs(input_ids, attention_mask, position_ids, segment_ids, training)
        return self._masked_logits(self._logits(inputs, positions))

    def _masked_logits(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(logits, tf.float32) + mask_padded_ids(
            tf.zeros(logits.shape[-1:]), self.vocabulary.size
        )

    def _logits(self, inputs: Inputs, positions: tf.Tensor | None) -> tf.Tensor:
        if self._head is not None:
            return self._head(self._hidden(inputs, positions))
        with self._called_with(inputs):
            logits = self.network(**self._arguments(inputs)).logits
        return logits if positions is None else tf.gather(logits, positions, batch_dims=1)

    def _hidden(self, inputs: Inputs, positions: tf.Tensor | None) -> tf.Tensor:
        """Returns the last hidden states at `positions`, [B, T, H]."""
        encoder = getattr(self.network, self.network.base_model_prefix)
        with self._called_with(inputs):
            hidden = encoder(**self._arguments(inputs))[0]
        return hidden if positions is None else tf.gather(hidden, positions, batch_dims=1)

    def _called_with(self, inputs: Inputs) -> AbstractContextManager[None]:
        return self.context.using(replace(self.context.values, segment_ids=inputs.segment_ids))

    def _arguments(self, inputs: Inputs) -> dict[str, Any]:
        attention_mask = inputs.attention_mask
        if attention_mask is None and self.network.config.model_type in INFER_PADDING:
            attention_mask = tf.ones_like(inputs.input_ids)
        arguments: dict[str, Any] = {
            "input_ids": inputs.input_ids,
            "attention_mask": attention_mask,
            "training": inputs.training,
        }
        if inputs.position_ids is not None and "position_ids" in self._accepted:
            arguments["position_ids"] = self._network_positions(inputs.position_ids, inputs.attention_mask)
        if self.objective == "clm" and "use_cache" in self._accepted:
            arguments["use_cache"] = False
        return arguments

    def _network_positions(self, position_ids: tf.Tensor, attention_mask: tf.Tensor | None) -> tf.Tensor:
        if self._first_position == 0:
            return position_ids
        positions = position_ids + self._first_position
        return (
            positions
            if attention_mask is None
            else tf.where(attention_mask > 0, positions, self.vocabulary.pad_id)
        )

    def ignored_features(self, features: Collection[str]) -> list[str]:
        """Returns the dataset's `features` that a causal model should use but this one does not support."""
        if self.objective != "clm":
            return []
        used_features = self._accepted | ({"segment_ids"} if self._separates_documents else set())
        return sorted({"position_ids", "segment_ids"} & set(features) - used_features)

    def init_output_bias(self, target_counts: np.ndarray, initial: InitialValues | None = None) -> None:
        """Sets the output bias to the log frequencies of the targets.

        Args:
            target_counts: float[V], how often each id is a target in the training split.
            initial: Has the weights' values.

        Raises:
            UsageError: If the model has no output bias.
        """
        biases = list((self.network.get_bias() or {}).values())
        if len(biases) != 1:
            raise UsageError(
                f"--model.init_output_bias: models of type {self.network.config.model_type!r} have no output bias; "
                "omit the option"
            )
        counts = target_counts + 1  # a token that did not occur may still occur
        bias = np.full(self.network.config.vocab_size, 0, np.float32)
        bias[: self.vocabulary.size] = np.log(counts / counts.sum())
        (initial or InitialValues()).assign(biases[0], lambda: bias.reshape(biases[0].shape))
