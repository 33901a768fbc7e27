"""The second part of a layer: an MLP, or several of which each token uses some."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf

from tpu_trainer.network.architecture import Mlp
from tpu_trainer.network.division import ONE_DEVICE, Division
from tpu_trainer.network.experts import balance_loss, mixture
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
    division: Division = ONE_DEVICE,
    real: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the MLP's output, [B, L, H], and what its loss needs: float32 of shape `loss_shape`.

    Args:
        x: [B, L, H].
        shape: The MLP's.
        weights: Those of mlp.up, mlp.down, if it is gated mlp.gate, and if there are experts mlp.router.
        kept: Keeps the results of the first matrices.
        inner: Dropout before the last matrix. Experts have none.
        division: How devices divide the tokens, and the experts.
        real: See `experts.mixture`.
    """
    if shape.experts is not None:
        return mixture(x, shape, weights, kept=kept, division=division, real=real)
    up = kept("up", linear(x, weights, "mlp.up", division))
    if shape.gated:
        gate = kept("gate", linear(x, weights, "mlp.gate", division))
        between = activate(gate, shape.activation) * up
    else:
        between = activate(up, shape.activation)
    return linear(inner(between), weights, "mlp.down", division), tf.zeros([])


def loss_shape(shape: Mlp) -> tuple[int, ...]:
    """Returns the shape of the values of each layer from which the layers' loss is computed."""
    return () if shape.experts is None else (2, shape.experts)


def layers_loss(sums: tf.Tensor, shape: Mlp, layers: int) -> tf.Tensor:
    """Returns the layers' loss, float32 scalar, for the sum of their values of `loss_shape`."""
    if shape.experts is None:
        return sums
    return shape.balance_loss * balance_loss(sums / layers)
