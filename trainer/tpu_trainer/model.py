"""The masked language model: a Hugging Face TensorFlow model, with the vocabulary and the positions put right."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from transformers import (
    CONFIG_MAPPING,
    TF_MODEL_FOR_MASKED_LM_MAPPING,
    PretrainedConfig,
    TFAutoModelForMaskedLM,
    TFPreTrainedModel,
)

from tpu_trainer.config import ModelConfig
from tpu_trainer.dropout import key_dropout
from tpu_trainer.errors import UsageError
from tpu_trainer.vocabulary import Vocabulary

# Layers that turn the encoder's output into logits on their own. A model with none of these is called as a whole.
_HEAD_NAMES = ("lm_head", "mlm", "predictions")
# Families whose positions count from the padding id on: a row's first token stands at pad_id + 1.
_POSITIONS_FROM_PADDING = frozenset(
    ("camembert", "esm", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta")
)
_NOT_CHOSEN = dict.fromkeys(
    ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"),
    "it follows from the tokenizer and cannot be set",
) | {"tie_word_embeddings": "the TensorFlow models always tie the output weights to the input embeddings"}
_NEVER = -1e9


def network_config(config: ModelConfig, vocabulary: Vocabulary, max_length: int) -> PretrainedConfig:
    """The Hugging Face configuration of the model, its vocabulary padded to `vocabulary.padded_size`.

    Raises UsageError for an unknown type or value, and for positions that do not hold `max_length` tokens.
    """
    supported = {cls.model_type: cls for cls in TF_MODEL_FOR_MASKED_LM_MAPPING}
    if config.type not in supported:
        raise UsageError(
            f"--model.type is {config.type!r}: it has no TensorFlow masked-LM class; "
            f"one of {', '.join(sorted(supported))}"
        )
    defaults = CONFIG_MAPPING[config.type]()
    for name in config.config:
        if name in _NOT_CHOSEN:
            raise UsageError(f"--model.config.{name}: {_NOT_CHOSEN[name]}")
        if not hasattr(defaults, name):
            raise UsageError(
                f"--model.config.{name}: configurations of type {config.type!r} have no such value"
            )
    first_position = _first_position(config.type, vocabulary)
    values = {"max_position_embeddings": max_length + first_position} | config.config
    if values["max_position_embeddings"] < max_length + first_position:
        raise UsageError(
            f"--model.config.max_position_embeddings is {values['max_position_embeddings']}: rows of {max_length} "
            f"tokens need {max_length + first_position} in a model of type {config.type!r}"
        )
    return CONFIG_MAPPING[config.type](
        vocab_size=vocabulary.padded_size,
        pad_token_id=vocabulary.pad_id,
        bos_token_id=vocabulary.bos_id,
        eos_token_id=vocabulary.eos_id,
        **values,
    )


def _first_position(model_type: str, vocabulary: Vocabulary) -> int:
    """The position that the model gives to a row's first token."""
    return vocabulary.pad_id + 1 if model_type in _POSITIONS_FROM_PADDING else 0


def build_network(config: PretrainedConfig) -> TFPreTrainedModel:
    """The masked-LM network of `config`, its variables made, with the names that Hugging Face's formats rely on."""
    network = TFAutoModelForMaskedLM.from_config(config)
    network.build_in_name_scope()
    return network


class MaskedLanguageModel:
    """A network with the two calls that training needs: hidden states, and logits at some positions only."""

    def __init__(self, *, network: TFPreTrainedModel, vocabulary: Vocabulary) -> None:
        """
        Args:
            network: A built TF…ForMaskedLM of vocabulary size `vocabulary.size` or `vocabulary.padded_size`.
            vocabulary: The tokenizer's.
        """
        self.network = network
        self.vocabulary = vocabulary
        self.dropout_key = key_dropout(network)
        self._first_position = _first_position(network.config.model_type, vocabulary)
        self._head = next((getattr(network, name) for name in _HEAD_NAMES if hasattr(network, name)), None)
        for layer in network.submodules:
            # transformers' TensorFlow classes of RoBERTa's family count positions from padding id 1, whatever the
            # tokenizer's; its PyTorch classes use the tokenizer's.
            if self._first_position and hasattr(layer, "padding_idx"):
                layer.padding_idx = vocabulary.pad_id

    @classmethod
    def create(
        cls, config: ModelConfig, *, vocabulary: Vocabulary, max_length: int, seed: int
    ) -> MaskedLanguageModel:
        """A new model; its weights are a function of `seed`. UsageError where `config` does not fit."""
        hf_config = network_config(config, vocabulary, max_length)
        keras.utils.set_random_seed(seed)
        return cls(network=build_network(hf_config), vocabulary=vocabulary)

    def logits_at(
        self,
        *,
        input_ids: tf.Tensor,
        positions: tf.Tensor,
        attention_mask: tf.Tensor | None = None,
        position_ids: tf.Tensor | None = None,
        training: bool = False,
    ) -> tf.Tensor:
        """float32[B, T, V] logits at `positions` (int32[B, T]) of `input_ids` (int32[B, L]).

        Where the model's head is a layer of its own, only those positions go through it. `position_ids` (int32[B, L])
        count from 0; None: the row is one text. Ids that do not exist get a logit that no softmax sees.
        """
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "training": training,
        }
        if position_ids is not None:
            inputs["position_ids"] = self._network_positions(position_ids, attention_mask)
        if self._head is None:
            chosen = tf.gather(self.network(**inputs).logits, positions, batch_dims=1)
        else:
            encoder = getattr(self.network, self.network.base_model_prefix)
            hidden = encoder(**inputs)[0]
            chosen = self._head(tf.gather(hidden, positions, batch_dims=1))
        logits = tf.cast(chosen, tf.float32)
        surplus = logits.shape[-1] - self.vocabulary.size
        if surplus:
            logits += np.array([0.0] * self.vocabulary.size + [_NEVER] * surplus, np.float32)
        return logits

    def _network_positions(self, position_ids: tf.Tensor, attention_mask: tf.Tensor | None) -> tf.Tensor:
        if self._first_position == 0:
            return position_ids
        counted = position_ids + self._first_position
        return (
            counted
            if attention_mask is None
            else tf.where(attention_mask > 0, counted, self.vocabulary.pad_id)
        )

    def init_output_bias(self, token_counts: np.ndarray) -> None:
        """Sets the output bias to the log frequencies of the tokens that can be targets.

        Args:
            token_counts: float[V], how often each id occurs in the training split.
        """
        counts = target_counts(token_counts, self.vocabulary) + 1  # a token that never occurs may still come
        bias = np.zeros(self.network.config.vocab_size, np.float32)
        bias[: self.vocabulary.size] = np.log(counts / counts.sum())
        (variable,) = self.network.get_bias().values()
        variable.assign(bias)


def target_counts(token_counts: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """float64[V]: `token_counts` with 0 for special ids, which are never targets."""
    counts = np.array(token_counts, np.float64)
    counts[list(vocabulary.special_ids)] = 0
    return counts


def unigram_entropy(token_counts: np.ndarray, vocabulary: Vocabulary) -> float:
    """Nats per target of the best guess that knows only how frequent each token is."""
    counts = target_counts(token_counts, vocabulary)
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())
