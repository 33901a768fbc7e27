"""Attention confined to a document, for rows that hold several.

Hugging Face's TensorFlow models take a mask of tokens, not one of pairs of tokens. Inside them, though, every attention
layer adds a mask to its scores, and that one may have any shape that broadcasts to [batch, heads, queries, keys].
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.network.call_context import CallContext

_SEPARATE = -1e9


def separate_documents(network: keras.Model, context: CallContext) -> bool:
    """Confines the attention layers of `network` to the context's segment_ids; returns whether it has such layers."""
    layers = [layer for layer in network.submodules if takes_mask(layer)]
    # An outer layer hands its mask on to an inner one.
    inner = [layer for layer in layers if not any(takes_mask(part) for part in layer.submodules)]
    for layer in inner:
        _add_mask(layer, context)
    return bool(inner)


def takes_mask(layer: tf.Module) -> bool:
    """Whether `layer` is an attention layer that is called with a mask of scores."""
    return (
        isinstance(layer, keras.layers.Layer)
        and "Attention" in type(layer).__name__
        and "attention_mask" in inspect.signature(layer.call).parameters
    )


def _add_mask(layer: keras.layers.Layer, context: CallContext) -> None:
    original = layer.call
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        itself = getattr(layer, "separates_documents_in_training", False) and bound.arguments.get("training")
        if context.values.segment_ids is None or itself:
            return original(*args, **kwargs)
        mask = bound.arguments.get("attention_mask")
        bound.arguments["attention_mask"] = _separating(context.values.segment_ids, mask)
        return original(*bound.args, **bound.kwargs)

    layer.call = call


def _separating(segment_ids: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """[B, 1, L, L]: an additive mask that lets a pair of tokens through where `mask` does and their segment is one."""
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    bias = tf.where(same, 0.0, _SEPARATE)
    # Not the sum: twice the lowest value of a type is infinite.
    return bias if mask is None else tf.minimum(mask, tf.cast(bias, mask.dtype))
