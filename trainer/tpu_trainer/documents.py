"""Attention that stays within a document, for rows that hold several.

Hugging Face's TensorFlow models take a mask of tokens, not one of pairs of tokens. Inside them, though, every attention
layer adds a mask to its scores, and that one may have any shape that broadcasts to [batch, heads, queries, keys].
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tf_keras as keras

_SEPARATE = -1e9


class SegmentMask:
    """The pairs of tokens that may not see each other, while a model is called."""

    def __init__(self) -> None:
        self._bias: tf.Tensor | None = None

    @contextmanager
    def of(self, segment_ids: tf.Tensor) -> Iterator[None]:
        """Calls of the model in this context keep each token of `segment_ids` (int32[B, L]) to its own segment."""
        same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
        self._bias = tf.where(same, 0.0, _SEPARATE)
        try:
            yield
        finally:
            self._bias = None

    def added_to(self, attention_mask: tf.Tensor | None) -> tf.Tensor | None:
        """An attention layer's additive mask, and this: a pair is seen where both let it."""
        if self._bias is None or attention_mask is None:
            return self._bias if attention_mask is None else attention_mask
        # Not the sum: twice the lowest value of a type is infinite.
        return tf.minimum(attention_mask, tf.cast(self._bias, attention_mask.dtype))


def separate_documents(network: keras.Model) -> SegmentMask | None:
    """Makes the attention layers of `network` heed a SegmentMask, which it returns; None where it has none that can."""
    layers = [layer for layer in network.submodules if _takes_mask(layer)]
    # An outer layer hands its mask on to an inner one.
    inner = [layer for layer in layers if not any(_takes_mask(part) for part in layer.submodules)]
    mask = SegmentMask()
    for layer in inner:
        _add_mask(layer, mask)
    return mask if inner else None


def _takes_mask(layer: tf.Module) -> bool:
    return (
        isinstance(layer, keras.layers.Layer)
        and "Attention" in type(layer).__name__
        and "attention_mask" in inspect.signature(layer.call).parameters
    )


def _add_mask(layer: keras.layers.Layer, mask: SegmentMask) -> None:
    original = layer.call
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["attention_mask"] = mask.added_to(bound.arguments.get("attention_mask"))
        return original(*bound.args, **bound.kwargs)

    # Libraries build these layers themselves, deep inside their models: they can only be changed where they are.
    layer.call = call
