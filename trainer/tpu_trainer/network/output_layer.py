"""The part of a Hugging Face model that maps hidden states to logits, split before its last matrix."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras as keras
from transformers import TFPreTrainedModel

from tpu_trainer.network.cross_entropy import OutputWeights

# Model types whose logits are the product of the last hidden state and the input embeddings.
_TIED_WITHOUT_HEAD = frozenset(("gpt2", "opt"))
# Attributes that contain a model's head.
_HEAD_NAMES = ("lm_head", "mlm", "predictions")


class OutputLayer:
    """The layer that maps hidden states to logits, as two parts: `transform`, then `weights`."""

    def __init__(
        self,
        *,
        transform: Callable[[tf.Tensor], tf.Tensor],
        matrix: tf.Variable,
        transposed: bool,
        bias: tf.Variable | None,
    ) -> None:
        """
        Args:
            transform: [B, T, H] → [B, T, H].
            matrix: [V, H]; [H, V] if `transposed`, as in a Dense layer.
            transposed: Whether to transpose `matrix`.
            bias: [V]; None: 0.
        """
        self.transform = transform
        self._matrix = matrix
        self._transposed = transposed
        self._bias = bias

    def weights(self) -> OutputWeights:
        """Returns the matrix and the bias as float32 tensors."""
        matrix = tf.convert_to_tensor(self._matrix)
        matrix = tf.transpose(matrix) if self._transposed else matrix
        bias = tf.zeros(matrix.shape[:1]) if self._bias is None else tf.convert_to_tensor(self._bias)
        return OutputWeights(matrix, bias)


def find_head(network: TFPreTrainedModel) -> keras.layers.Layer | None:
    """Returns the layer that maps hidden states to logits; None if there is none or its attribute is unknown."""
    return next((getattr(network, name) for name in _HEAD_NAMES if hasattr(network, name)), None)


def find_output_layer(network: TFPreTrainedModel) -> OutputLayer | None:
    """Returns the parts of the layer that computes the logits of `network`; None if its structure is unknown."""
    if network.config.model_type in _TIED_WITHOUT_HEAD:
        (matrix,) = network.get_input_embeddings().weights
        return OutputLayer(transform=tf.identity, matrix=matrix, transposed=False, bias=None)
    head = find_head(network)
    head = getattr(head, "predictions", head)
    if isinstance(head, keras.layers.Dense):
        return OutputLayer(transform=tf.identity, matrix=head.kernel, transposed=True, bias=head.bias)
    if all(hasattr(head, name) for name in ("transform", "input_embeddings", "bias")):  # BERT's
        return OutputLayer(
            transform=head.transform, matrix=head.input_embeddings.weight, transposed=False, bias=head.bias
        )
    if all(hasattr(head, name) for name in ("dense", "act", "layer_norm", "decoder", "bias")):  # RoBERTa's
        return OutputLayer(
            transform=lambda hidden: head.layer_norm(head.act(head.dense(hidden))),
            matrix=head.decoder.weight,
            transposed=False,
            bias=head.bias,
        )
    return None
