"""A network as a function of token ids: embeddings, layers, and the head up to its last matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.config import Recompute
from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.cudnn_attention import Mask, masks
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.dropout import DropoutKey, drop
from tpu_trainer.network.kernels import Kernel
from tpu_trainer.network.layer import RECOMPUTED, Layer, Shared, layer_scalars
from tpu_trainer.network.mlp import layers_loss, loss_shape
from tpu_trainer.network.norms import activate, normalize
from tpu_trainer.network.products import linear
from tpu_trainer.network.rope import rope_tables
from tpu_trainer.network.stack import run_layers
from tpu_trainer.network.weights import STACKED

Weights = Mapping[str, tf.Tensor]


class Inputs(NamedTuple):
    """A network's inputs: B rows of L tokens."""

    input_ids: tf.Tensor
    """int32[B, L]."""
    attention_mask: tf.Tensor | None = None
    """int32[B, L], 1 for real tokens; None: all are real."""
    position_ids: tf.Tensor | None = None
    """int32[B, L], starting from 0; None: the row is one document."""
    segment_ids: tf.Tensor | None = None
    """int32[B, L], the number of each token's document, not negative; None: the row is one document."""
    dropout: DropoutKey | None = None
    """None: no dropout."""
    order: np.ndarray | None = None
    """int32[L], the place of each column in its row; None: columns are in order."""

    def ordered(self, order: np.ndarray) -> Inputs:
        """Returns the rows with their columns in this order."""
        length = self.input_ids.shape[1]
        positions = tf.range(length, dtype=tf.int32)[None] if self.position_ids is None else self.position_ids
        columns = [self.input_ids, self.attention_mask, positions, self.segment_ids]
        ordered = [None if values is None else tf.gather(values, order, axis=1) for values in columns]
        return Inputs(*ordered, dropout=self.dropout, order=order)


@dataclass(frozen=True, kw_only=True)
class Computation:
    """How a network is computed. It does not change the results, except for rounding."""

    dtype: tf.DType = tf.float32
    """Of activations and of the factors of products."""
    recompute: Recompute = "nothing"
    """What the backward pass recomputes; see layer.RECOMPUTED."""
    kernel: Kernel | None = None
    """Computes attention in training; None: plain operations do."""
    narrow_in_loop: bool = True
    """Whether each layer converts its own weights to `dtype`; otherwise, the compiler converts those of all before."""
    division: Division = ONE_DEVICE
    """How devices divide the program."""


def hidden_states(
    architecture: Architecture, weights: Weights, inputs: Inputs, computation: Computation, *, training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the last hidden states, [B, L, H] in the computation's dtype, and the layers' loss, float32 scalar.

    Args:
        architecture: The network's.
        weights: By name, float32.
        inputs: The rows.
        computation: How to compute them.
        training: Whether gradients follow.
    """
    positions = inputs.position_ids
    if positions is None:
        positions = tf.range(inputs.input_ids.shape[1], dtype=tf.int32)[None]
    division = computation.division
    hidden = division.by_token(embed(architecture, weights, inputs, positions, computation.dtype, division))
    cosines, sines = rotations(architecture, positions)
    kernel = computation.kernel if training else None
    kernel_masks: tuple[Mask, ...] = ()
    if kernel is not None and kernel.name == "cudnn":
        # Padding comes after the tokens, which causal attention does not let them see.
        segments = inputs.segment_ids if architecture.causal else _segments(inputs)
        kernel_masks = masks(architecture, segments=segments, length=inputs.input_ids.shape[1])
    layer = Layer(
        architecture,
        Shared(cosines, sines, _segments(inputs), inputs.dropout, kernel_masks, inputs.order),
        kernel,
        division,
    )
    layers = stacks(weights)
    hidden, sums = run_layers(
        layer,
        hidden,
        weights=layers,
        scalars=layer_scalars(architecture),
        keep=RECOMPUTED[computation.recompute] if training else None,
        factors=_factors(layers) if training and computation.narrow_in_loop else (),
        loss_shape=loss_shape(architecture.mlp),
    )
    if architecture.final_norm:
        hidden = normalize(hidden, architecture.norm, weights, "final_norm")
    return hidden, layers_loss(sums, architecture.mlp, architecture.layers)


def stacks(weights: Weights) -> dict[str, tf.Tensor]:
    """Returns the layers' weights by their names within a layer."""
    return {name.removeprefix(STACKED): value for name, value in weights.items() if name.startswith(STACKED)}


def _factors(layers: Weights) -> set[str]:
    """Returns the names of the matrices of which a layer uses nothing but products in the dtype of hidden states.

    Experts choose in float32, and sum the gradients of several passes.
    """
    return {name for name, stack in layers.items() if len(stack.shape) == 3 and name != "mlp.router.weight"}


def rotations(
    architecture: Architecture, positions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor] | tuple[None, None]:
    """Returns the tables of layer.Shared for positions, int32[B or 1, L]."""
    if not architecture.ropes:
        return None, None
    cosines, sines = rope_tables(architecture.ropes, positions)
    if any(kind.rope is None for kind in architecture.kinds):
        cosines = tf.concat([cosines, tf.ones_like(cosines[:1])], axis=0)
        sines = tf.concat([sines, tf.zeros_like(sines[:1])], axis=0)
    return cosines, sines


def embed(
    architecture: Architecture,
    weights: Weights,
    inputs: Inputs,
    positions: tf.Tensor,
    dtype: tf.DType,
    division: Division = ONE_DEVICE,
) -> tf.Tensor:
    """Returns the first layer's input, [B, L, H].

    Args:
        architecture: The network's.
        weights: By name, float32.
        inputs: The rows.
        positions: int32[B or 1, L], from 0.
        dtype: Of the result.
        division: How devices divide the program.
    """
    hidden = tf.gather(weights["embeddings.tokens.weight"], inputs.input_ids) * architecture.embedding_scale
    narrow = architecture.embedding_width is not None
    # ELECTRA's positions are as wide as its embeddings, OPT's as its hidden states.
    if narrow and architecture.embedding_norm is None:
        hidden = linear(hidden, weights, "embeddings.projection", division)
    if (learned := architecture.positions) is not None:
        rows = positions + learned.first
        if learned.padding is not None and inputs.attention_mask is not None:
            rows = tf.where(inputs.attention_mask > 0, rows, learned.padding)
        hidden += tf.gather(weights["embeddings.positions.weight"], rows)
    if architecture.token_types:
        hidden += weights["embeddings.types.weight"][0]
    hidden = tf.cast(hidden, dtype)
    if (norm := architecture.embedding_norm) is not None:
        hidden = normalize(hidden, norm, weights, "embeddings.norm")
    hidden = drop(hidden, architecture.dropout.embeddings, inputs.dropout, 0)
    if narrow and architecture.embedding_norm is not None:
        hidden = linear(hidden, weights, "embeddings.projection", division)
    return hidden


def head_input(
    architecture: Architecture, weights: Weights, hidden: tf.Tensor, division: Division = ONE_DEVICE
) -> tf.Tensor:
    """Returns the input of the output matrix, [B, T, head_width], for hidden states [B, T, H]."""
    head = architecture.head
    if head.transform:
        hidden = linear(hidden, weights, "head.transform", division)
    if head.activation is not None:
        hidden = activate(hidden, head.activation)
    if head.norm is not None:
        hidden = normalize(hidden, head.norm, weights, "head.norm")
    return hidden


def _segments(inputs: Inputs) -> tf.Tensor | None:
    """Returns Visibility's segments, in which padding is segment -1."""
    if inputs.attention_mask is None:
        return inputs.segment_ids
    segments = tf.zeros_like(inputs.input_ids) if inputs.segment_ids is None else inputs.segment_ids
    return tf.where(inputs.attention_mask > 0, segments, -1)
