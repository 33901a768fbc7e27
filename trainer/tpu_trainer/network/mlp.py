"""The second part of a layer: an MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from tpu_trainer.network.architecture import Mlp
from tpu_trainer.network.norms import activate
from tpu_trainer.network.products import linear
from tpu_trainer.network.stack import Kept


def mlp(
    x: tf.Tensor,
    shape: Mlp,
    weights: Mapping[str, tf.Tensor],
    *,
    kept: Kept,
    inner: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the MLP's output, [B, L, H], and its loss, float32 scalar.

    Args:
        x: [B, L, H].
        shape: The MLP's.
        weights: Those of mlp.up, mlp.down and, if it is gated, mlp.gate.
        kept: Keeps the results of the first matrices.
        inner: Dropout before the last matrix.
    """
    up = kept("up", linear(x, weights, "mlp.up"))
    if shape.gated:
        gate = kept("gate", linear(x, weights, "mlp.gate"))
        between = activate(gate, shape.activation) * up
    else:
        between = activate(up, shape.activation)
    return linear(inner(between), weights, "mlp.down"), tf.zeros([])
