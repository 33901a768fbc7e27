"""Where a Hugging Face model turns hidden states into logits: what comes before the last matrix, and the matrix."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
import tf_keras as keras
from transformers import TFPreTrainedModel

from tpu_trainer.network.cross_entropy import OutputWeights

# Model types whose logits are the last hidden state times the input embeddings, and nothing else.
_TIED_WITHOUT_HEAD = frozenset(("gpt2", "opt"))
# Attributes that hold the head in models that have one.
_HEAD_NAMES = ("lm_head", "mlm", "predictions")


class OutputLayer:
    """The layer between hidden states and logits, in two parts: `transform`, then `weights`."""

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
            matrix: [V, H], or [H, V] where `transposed`.
            transposed: Whether `matrix` is a Dense layer's kernel.
            bias: [V], or None.
        """
        self.transform = transform
        self._matrix = matrix
        self._transposed = transposed
        self._bias = bias

    def weights(self) -> OutputWeights:
        """The matrix and the bias, as float32 tensors."""
        matrix = tf.convert_to_tensor(self._matrix)
        matrix = tf.transpose(matrix) if self._transposed else matrix
        bias = tf.zeros(matrix.shape[:1]) if self._bias is None else tf.convert_to_tensor(self._bias)
        return OutputWeights(matrix, bias)


def head_of(network: TFPreTrainedModel) -> keras.layers.Layer | None:
    """The layer that makes logits of hidden states; None: there is none, or it is not known."""
    return next((getattr(network, name) for name in _HEAD_NAMES if hasattr(network, name)), None)


def find_output_layer(network: TFPreTrainedModel) -> OutputLayer | None:
    """The parts of the layer that makes the logits of `network`; None where they are not known."""
    if network.config.model_type in _TIED_WITHOUT_HEAD:
        (matrix,) = network.get_input_embeddings().weights
        return OutputLayer(transform=tf.identity, matrix=matrix, transposed=False, bias=None)
    head = head_of(network)
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
