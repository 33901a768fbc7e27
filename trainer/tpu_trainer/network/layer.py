"""One layer of a network: attention and MLP, each with its norms, added to the hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpu_trainer.network.architecture import Architecture
from tpu_trainer.network.attention import ProbabilitiesDropout, Visibility, attend
from tpu_trainer.network.attention_kernel import attend_in_kernel
from tpu_trainer.network.cudnn_attention import Mask, attend_in_cudnn
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.dropout import DropoutKey, drop
from tpu_trainer.network.kernels import Kernel
from tpu_trainer.network.mlp import mlp
from tpu_trainer.network.norms import normalize
from tpu_trainer.network.products import linear
from tpu_trainer.network.rope import rotate
from tpu_trainer.network.splash_attention import attend_in_splash
from tpu_trainer.network.stack import Kept

Weights = Mapping[str, tf.Tensor]

# The norms of the hidden states, whose statistics are kept: small, and each costs a pass over these.
_NORMS = ("attention_norm", "attention_norm_after", "mlp_norm", "mlp_norm_after")
_KEPT = frozenset(
    ("query", "key", "value", "statistics", "context", "attention", "experts", "gate", "up", "mlp",
     *(f"{norm}.{statistic}" for norm in _NORMS for statistic in ("mean", "variance")))
)  # fmt: skip
RECOMPUTED: dict[str, frozenset[str]] = {
    "nothing": _KEPT | {"scores", "probabilities"},
    "attention": _KEPT,
    "all": frozenset(),
}
"""What the backward pass recomputes → the values that are kept for it. Besides these, it recomputes norms,
activations, rotations and dropout, which cost little."""
# Numbers of the places with dropout in a layer.
_PLACES = 4
_PROBABILITIES, _ATTENTION, _INNER, _MLP = range(_PLACES)


class Shared(NamedTuple):
    """What all layers get."""

    cosines: tf.Tensor | None
    """float32[R, B or 1, L, D / 2], of each rotation; None: there is none."""
    sines: tf.Tensor | None
    segments: tf.Tensor | None
    """See Visibility."""
    dropout: DropoutKey | None
    masks: tuple[Mask, ...] = ()
    """What cuDNN's kernel masks, for each window of the layers."""
    order: np.ndarray | None = None
    """See Visibility."""


def layer_scalars(architecture: Architecture) -> dict[str, tf.Tensor]:
    """Returns name → a value of each layer, [N], for what differs between layers."""
    kinds = architecture.kinds
    scalars = {"number": tf.range(len(kinds))}
    if len({kind.window for kind in kinds}) > 1:
        scalars["window"] = tf.constant([kind.window or 2**30 for kind in kinds])
        windows = architecture.windows
        scalars["window_number"] = tf.constant([windows.index(kind.window) for kind in kinds])
    if len({kind.rope for kind in kinds}) > 1:
        # A layer without a rotation gets the table after the others', whose frequencies are 0.
        scalars["rope"] = tf.constant(
            [len(architecture.ropes) if kind.rope is None else kind.rope for kind in kinds]
        )
    if len({kind.scale for kind in kinds}) > 1:
        scalars["scale"] = tf.constant([kind.scale for kind in kinds])
    if len({kind.norm_attention for kind in kinds}) > 1:
        scalars["norm_attention"] = tf.constant([kind.norm_attention for kind in kinds])
    return scalars


@dataclass(frozen=True)
class Layer:
    """A layer as a function of its weights, for `stack.run_layers`."""

    architecture: Architecture
    shared: Shared
    kernel: Kernel | None = None
    """See transformer.Computation."""
    division: Division = ONE_DEVICE
    """See transformer.Computation."""

    def __call__(
        self, hidden: tf.Tensor, weights: Weights, scalars: Weights, kept: Kept
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the new hidden states, [B, L, H], and the layer's part of `mlp.layers_loss`."""
        architecture = self.architecture
        before = "before" in architecture.norm_place
        after = architecture.norm_place in ("after", "before and after")
        rates, dropout = architecture.dropout, self.shared.dropout

        def normed(x: tf.Tensor, name: str) -> tf.Tensor:
            return normalize(x, architecture.norm, weights, name, kept)

        def place(number: int) -> tf.Tensor:
            return 1 + scalars["number"] * _PLACES + number

        inputs = self._attention_input(hidden, weights, scalars, kept) if before else hidden
        output = self._attention(inputs, weights, scalars, kept)
        if after:
            output = normed(kept("attention", output), "attention_norm_after")
        output = drop(output, rates.attention, dropout, place(_ATTENTION))
        if architecture.parallel:
            mlp_input = inputs if architecture.shared_norm else normed(hidden, "mlp_norm")
        else:
            hidden = hidden + output if after else kept("attention", hidden + output)
            if architecture.norm_place == "sum":
                hidden = normed(hidden, "attention_norm_after")
            mlp_input = normed(hidden, "mlp_norm") if before else hidden
        result, loss = mlp(
            mlp_input,
            architecture.mlp,
            weights,
            kept=kept,
            inner=lambda x: drop(x, rates.inner, dropout, place(_INNER)),
            division=self.division,
            real=None if self.shared.segments is None else self.shared.segments >= 0,
        )
        if after:
            result = normed(kept("mlp", result), "mlp_norm_after")
        result = drop(result, rates.mlp, dropout, place(_MLP))
        if architecture.parallel:
            return hidden + output + result, loss
        hidden = hidden + result
        if architecture.norm_place == "sum":
            hidden = normed(kept("mlp", hidden), "mlp_norm_after")
        return hidden, loss

    def _attention_input(
        self, hidden: tf.Tensor, weights: Weights, scalars: Weights, kept: Kept
    ) -> tf.Tensor:
        normed = normalize(hidden, self.architecture.norm, weights, "attention_norm", kept)
        if "norm_attention" not in scalars:
            return normed
        return tf.where(scalars["norm_attention"], normed, hidden)

    def _attention(self, x: tf.Tensor, weights: Weights, scalars: Weights, kept: Kept) -> tf.Tensor:
        attention = self.architecture.attention
        rows, length, _ = x.shape
        query, key, value = (
            kept(name, linear(x, weights, f"attention.{name}", self.division))
            for name in ("query", "key", "value")
        )

        def heads(projected: tf.Tensor, count: int, norm: str | None = None) -> tf.Tensor:
            if attention.norm is None or norm is None:
                return tf.reshape(projected, [rows, length, count, attention.head_size])
            if not attention.norm_heads:
                projected = normalize(projected, attention.norm, weights, norm)
            projected = tf.reshape(projected, [rows, length, count, attention.head_size])
            return normalize(projected, attention.norm, weights, norm) if attention.norm_heads else projected

        query = self._rotated(heads(query, attention.heads, "attention.query_norm"), scalars)
        key = self._rotated(heads(key, attention.key_heads, "attention.key_norm"), scalars)
        dropout = ProbabilitiesDropout(
            self.architecture.dropout.probabilities,
            self.shared.dropout,
            1 + scalars["number"] * _PLACES + _PROBABILITIES,
        )
        value = heads(value, attention.key_heads)
        query = self.division.by_query(query)
        key, value = self.division.whole_rows(key), self.division.whole_rows(value)
        if self.kernel is None:
            context = self._plain(query, key, value, scalars, kept, dropout)
        elif self.kernel.name == "cudnn":
            context = attend_in_cudnn(
                query,
                key,
                value,
                masks=self.shared.masks,
                number=scalars.get("window_number", 0),
                scale=attention.scale * self.architecture.kinds[0].scale,
                kept=kept,
            )
        elif self.kernel.name == "splash":
            context = attend_in_splash(
                query,
                key,
                value,
                causal=self.architecture.causal,
                windows=self.architecture.windows,
                number=scalars.get("window_number", 0),
                scale=self._scale(scalars),
                soft_cap=attention.soft_cap,
                segments=self.shared.segments,
                kept=kept,
                division=self.division,
                order=self.shared.order,
            )
        else:
            context = attend_in_kernel(
                query,
                key,
                value,
                causal=self.architecture.causal,
                segments=self.shared.segments,
                dropout=dropout,
                dtype=self.kernel.dtype,
            )
        context = self.division.by_query(context)
        context = tf.reshape(context, [rows, length, attention.heads * attention.head_size])
        return linear(kept("context", context), weights, "attention.output", self.division)

    def _rotated(self, heads: tf.Tensor, scalars: Weights) -> tf.Tensor:
        ropes = self.architecture.ropes
        if self.shared.cosines is None or self.shared.sines is None:
            return heads
        number = scalars.get("rope", self.architecture.kinds[0].rope)
        cosines, sines = self.shared.cosines[number], self.shared.sines[number]
        return rotate(heads, cosines, sines, interleaved=ropes[0].interleaved)

    def _scale(self, scalars: Weights) -> tf.Tensor | float:
        return self.architecture.attention.scale * scalars.get("scale", self.architecture.kinds[0].scale)

    def _plain(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        scalars: Weights,
        kept: Kept,
        dropout: ProbabilitiesDropout,
    ) -> tf.Tensor:
        attention, kinds = self.architecture.attention, self.architecture.kinds
        return attend(
            query,
            key,
            value,
            visibility=Visibility(
                self.architecture.causal,
                scalars.get("window", kinds[0].window),
                self.shared.segments,
                self.shared.order,
            ),
            scale=self._scale(scalars),
            soft_cap=attention.soft_cap,
            kept=kept,
            dropout=dropout,
        )
