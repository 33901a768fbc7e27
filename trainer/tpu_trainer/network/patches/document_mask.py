"""Restricts attention to each document of a row.

Hugging Face's TensorFlow models accept a mask of tokens, but not of pairs of tokens. Their attention layers, however,
add a mask to the scores that can have any shape that broadcasts to [batch, heads, queries, keys].
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf
import tf_keras as keras

from tpu_trainer.network.call_context import CallContext

_MASKED_SCORE = -1e9


def separate_documents(network: keras.Model, context: CallContext) -> bool:
    """Makes the attention layers of `network` respect the context's segment_ids; returns whether it has any."""
    layers = [layer for layer in network.submodules if takes_mask(layer)]
    # Outer layers pass their mask to inner ones.
    inner = [layer for layer in layers if not any(takes_mask(part) for part in layer.submodules)]
    for layer in inner:
        _add_mask(layer, context)
    return bool(inner)


def takes_mask(layer: tf.Module) -> bool:
    """Returns whether `layer` is an attention layer with a mask argument."""
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
        bound.arguments["attention_mask"] = _document_mask(context.values.segment_ids, mask)
        return original(*bound.args, **bound.kwargs)

    layer.call = call


def _document_mask(segment_ids: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns an additive mask, [B, 1, L, L], that also blocks pairs of tokens of different segments.

    Example: segment_ids [[0, 0, 1]] and no mask, with - for _MASKED_SCORE, a line for each query:
        0 0 -
        0 0 -
        - - 0
    """
    is_same_segment = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    bias = tf.where(is_same_segment, 0.0, _MASKED_SCORE)
    # Not the sum, which may overflow to -inf.
    return bias if mask is None else tf.minimum(mask, tf.cast(bias, mask.dtype))
