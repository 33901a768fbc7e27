"""Attention that keeps no probabilities for the backward pass, which computes them anew.

They are the largest arrays of an encoder: rows · heads · length² for each layer. A layer's still exist while it is
computed, but only one layer's at a time. The gradient is that of Dao et al., "FlashAttention" (2022), algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras
from transformers import TFPreTrainedModel

from tpu_trainer.errors import UsageError
from tpu_trainer.network.dropout import KeyedDropout
from tpu_trainer.network.sequencing import after

# GPT-2's own value; no float32 score of a trained model comes near.
_UNSEEN = -1e4


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    *,
    bias: tf.Tensor | None,
    dropout: KeyedDropout | None,
) -> tf.Tensor:
    """[B, H, Q, D]: dropout(softmax(query · keyᵀ / √D + bias)) · value, in the inputs' type.

    Args:
        query: [B, H, Q, D].
        key: [B, H, K, D].
        value: [B, H, K, D].
        bias: Broadcasts to [B, H, Q, K]; gets no gradient. None: 0.
        dropout: The layer whose bits the probabilities get; None: none.
    """
    dtype = query.dtype
    scale = tf.cast(1 / math.sqrt(query.shape[-1]), dtype)
    bias = tf.zeros([1, 1, 1, 1], dtype) if bias is None else tf.cast(bias, dtype)
    words = None if dropout is None else dropout.words(query.shape[:-1])

    def dropped(values: tf.Tensor) -> tf.Tensor:
        return values if dropout is None else dropout.masked(values, words)

    def softmax(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + bias)

    @tf.custom_gradient
    def core(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        scaled = query * scale
        output = tf.matmul(dropped(softmax(scaled, key)), value)

        def gradient(d_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            probabilities = softmax(after(scaled, d_output), key)
            d_value = tf.matmul(dropped(probabilities), d_output, transpose_a=True)
            d_dropped = tf.cast(tf.matmul(d_output, value, transpose_b=True), tf.float32)
            # The softmax's Σ p · dp for each query is d_output · output.
            dot = tf.reduce_sum(
                tf.cast(d_output, tf.float32) * tf.cast(output, tf.float32), axis=-1, keepdims=True
            )
            d_scores = tf.cast(tf.cast(probabilities, tf.float32) * (dropped(d_dropped) - dot), dtype)
            return tf.matmul(d_scores, key) * scale, tf.matmul(d_scores, scaled, transpose_a=True), d_value

        return output, gradient

    return core(query, key, value)


def _dropout_of(layer: keras.layers.Dropout) -> KeyedDropout | None:
    return layer if layer.rate > 0 else None


def recompute_attention(network: TFPreTrainedModel) -> None:
    """Makes the attention layers of `network` use `attend` while training; they compute what they did.

    `key_dropout` comes first. UsageError for a model none of whose layers is known.
    """
    changed = 0
    for layer in network.submodules:
        kind = _kind(layer)
        if kind is not None:
            # Libraries build these layers, deep inside their models: they can only be changed where they are.
            layer.__class__ = type(f"Recomputing{type(layer).__name__}", (kind, type(layer)), {})
            changed += 1
    if not changed:
        raise UsageError(
            f"--train.recompute_attention: not known for models of type {network.config.model_type!r}; "
            "BERT's, RoBERTa's, ELECTRA's, CamemBERT's and GPT-2's are"
        )


def _kind(layer: tf.Module) -> type | None:
    name = type(layer).__name__
    if name in (
        "TFBertSelfAttention",
        "TFRobertaSelfAttention",
        "TFElectraSelfAttention",
        "TFCamembertSelfAttention",
    ):
        return None if layer.is_decoder else _BertAttention
    if type(layer).__module__.endswith("modeling_tf_gpt2") and name == "TFAttention":
        return None if layer.is_cross_attention or not layer.scale else _Gpt2Attention
    return None


class _BertAttention:
    """TFBertSelfAttention and its copies."""

    def call(
        self,
        hidden_states: tf.Tensor,
        attention_mask: tf.Tensor | None,
        head_mask: tf.Tensor | None,
        encoder_hidden_states: tf.Tensor | None,
        encoder_attention_mask: tf.Tensor | None,
        past_key_value: tuple[tf.Tensor, ...] | None,
        output_attentions: bool,
        training: bool = False,
    ) -> tuple[tf.Tensor, ...]:
        if not training or head_mask is not None or output_attentions:
            return super().call(
                hidden_states,
                attention_mask,
                head_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                past_key_value,
                output_attentions,
                training=training,
            )
        batch, length, _ = hidden_states.shape
        query, key, value = (
            self.transpose_for_scores(project(hidden_states), batch)
            for project in (self.query, self.key, self.value)
        )
        output = attend(query, key, value, bias=attention_mask, dropout=_dropout_of(self.dropout))
        return (tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [batch, length, self.all_head_size]),)


class _Gpt2Attention:
    """TFGPT2's TFAttention."""

    def _attn(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        attention_mask: tf.Tensor | None,
        head_mask: tf.Tensor | None,
        output_attentions: bool,
        training: bool = False,
    ) -> list[tf.Tensor]:
        if not training or head_mask is not None or output_attentions:
            return super()._attn(q, k, v, attention_mask, head_mask, output_attentions, training=training)
        seen = self.causal_attention_mask(q.shape[-2], k.shape[-2], tf.bool)
        bias = tf.where(seen, 0.0, _UNSEEN)[None, None]
        if attention_mask is not None:
            # Not the sum: twice the lowest value of a type is infinite.
            bias = tf.minimum(bias, tf.cast(attention_mask, tf.float32))
        return [attend(q, k, v, bias=bias, dropout=_dropout_of(self.attn_dropout))]
