"""Attention layers that compute the same result with less memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras as keras
from transformers import TFPreTrainedModel

from tpu_trainer.network.attention import attend
from tpu_trainer.network.attention_kernel import attend_in_kernel, unsupported_reason
from tpu_trainer.network.call_context import CallContext
from tpu_trainer.network.dropout import KeyedDropout
from tpu_trainer.support.errors import UsageError

# GPT-2's value. float32 scores of trained models are far above it.
_MASKED_SCORE = -1e4
_BERT_LIKE = (
    "TFBertSelfAttention",
    "TFRobertaSelfAttention",
    "TFElectraSelfAttention",
    "TFCamembertSelfAttention",
)


def recompute_attention(network: TFPreTrainedModel) -> None:
    """Makes the attention layers of `network` use attention.attend in training. Call `key_dropout` first.

    Raises:
        UsageError: If the model has no supported layer.
    """
    for layer in _supported_layers(network, "recompute_attention"):
        kind = _RecomputingBert if type(layer).__name__ in _BERT_LIKE else _RecomputingGpt2
        _patch_class(layer, kind, "Recomputing")


def use_attention_kernel(
    network: TFPreTrainedModel, context: CallContext, *, length: int, dtype: tf.DType, devices: int = 1
) -> None:
    """Makes the attention layers of `network` use attention_kernel.attend_in_kernel in training, for a TPU only.

    Call `key_dropout` first.

    Args:
        network: A built network.
        context: The values that the layers read during a call.
        length: Tokens in a row.
        dtype: See attention_kernel.kernel_dtype.
        devices: Devices that divide the heads.

    Raises:
        UsageError: If the model has no supported layer, or there is no kernel for `length` or the model's heads.
    """
    for layer in _supported_layers(network, "attention_kernel"):
        bert = type(layer).__name__ in _BERT_LIKE
        heads = layer.num_attention_heads if bert else layer.n_head
        head_size = layer.attention_head_size if bert else layer.split_size // layer.n_head
        reason = unsupported_reason(heads=heads, head_size=head_size, length=length, devices=devices)
        if reason is not None:
            raise UsageError(
                f"--train.attention_kernel: {reason}; use --train.recompute_attention, which supports all models of "
                "this type"
            )
        _patch_class(layer, _KernelBert if bert else _KernelGpt2, "Kernel")
        layer.context, layer.kernel_dtype = context, dtype


def _supported_layers(network: TFPreTrainedModel, option: str) -> list[keras.layers.Layer]:
    layers = [layer for layer in network.submodules if _is_supported(layer)]
    if not layers:
        raise UsageError(
            f"--train.{option}: not supported for models of type {network.config.model_type!r}, only for BERT, "
            "RoBERTa, ELECTRA, CamemBERT and GPT-2; omit the option"
        )
    return layers


def _is_supported(layer: tf.Module) -> bool:
    if type(layer).__name__ in _BERT_LIKE:
        return not layer.is_decoder
    return (
        type(layer).__name__ == "TFAttention"
        and type(layer).__module__.endswith("modeling_tf_gpt2")
        and not layer.is_cross_attention
        and layer.scale
    )


def _patch_class(layer: keras.layers.Layer, kind: type, prefix: str) -> None:
    layer.__class__ = type(f"{prefix}{type(layer).__name__}", (kind, type(layer)), {})


def _active_dropout(layer: keras.layers.Dropout) -> KeyedDropout | None:
    return layer if layer.rate > 0 else None


def _key_bias(mask: tf.Tensor | None) -> tf.Tensor | None:
    """Converts a model's mask, [B, 1, 1, K], to the kernel's, [B, K]."""
    if mask is None:
        return None
    if mask.shape[1:3] != (1, 1):
        raise ValueError(
            f"a mask of shape {mask.shape} depends on queries; the kernel supports only masks of keys"
        )
    return mask[:, 0, 0, :]


class _Bert:
    """TFBertSelfAttention and its copies, which use `_attend` in training unless the caller requests probabilities."""

    def _attend(self, hidden_states: tf.Tensor, attention_mask: tf.Tensor | None) -> tf.Tensor:
        """Returns [B, L, H · D]."""
        raise NotImplementedError

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
        return (self._attend(hidden_states, attention_mask),)


class _RecomputingBert(_Bert):
    def _attend(self, hidden_states: tf.Tensor, attention_mask: tf.Tensor | None) -> tf.Tensor:
        batch, length, _ = hidden_states.shape
        query, key, value = (
            self.transpose_for_scores(project(hidden_states), batch)
            for project in (self.query, self.key, self.value)
        )
        output = attend(query, key, value, bias=attention_mask, dropout=_active_dropout(self.dropout))
        return tf.reshape(tf.transpose(output, [0, 2, 1, 3]), [batch, length, self.all_head_size])


class _KernelBert(_Bert):
    def _attend(self, hidden_states: tf.Tensor, attention_mask: tf.Tensor | None) -> tf.Tensor:
        return attend_in_kernel(
            self.query(hidden_states),
            self.key(hidden_states),
            self.value(hidden_states),
            causal=False,
            key_bias=_key_bias(attention_mask),
            segment_ids=None,
            dropout=_active_dropout(self.dropout),
            dtype=self.kernel_dtype,
        )


class _RecomputingGpt2:
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
        visible = self.causal_attention_mask(q.shape[-2], k.shape[-2], tf.bool)
        bias = tf.where(visible, 0.0, _MASKED_SCORE)[None, None]
        if attention_mask is not None:
            # Not the sum, which may overflow to -inf.
            bias = tf.minimum(bias, tf.cast(attention_mask, tf.float32))
        return [attend(q, k, v, bias=bias, dropout=_active_dropout(self.attn_dropout))]


class _KernelGpt2:
    """TFGPT2's TFAttention with heads concatenated for the kernel, split only outside training."""

    separates_documents_in_training = True
    """document_mask.py adds no mask in training."""

    def split_heads(self, x: tf.Tensor) -> tf.Tensor:
        return x

    def merge_heads(self, x: tf.Tensor) -> tf.Tensor:
        return x

    def _attn(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        attention_mask: tf.Tensor | None,
        *others: Any,
        training: bool = False,
    ) -> list[tf.Tensor]:
        if training:
            output = attend_in_kernel(
                q,
                k,
                v,
                causal=True,
                key_bias=_key_bias(attention_mask),
                segment_ids=self.context.values.segment_ids,
                dropout=_active_dropout(self.attn_dropout),
                dtype=self.kernel_dtype,
            )
            return [output]
        heads = (super(_KernelGpt2, self).split_heads(x) for x in (q, k, v))
        output, *others = super()._attn(*heads, attention_mask, *others, training=training)
        return [super().merge_heads(output), *others]
