"""Skips updates with a loss spike: a loss far above that of the preceding steps.

A single bad batch can set a model back by thousands of steps. Skipping its update costs one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_STEPS = 64
"""Approximate window of the mean and the deviation. As many steps at the start are never skipped."""


class SpikeGuard(tf.Module):
    """Detects loss spikes on the device."""

    def __init__(self, deviations: float) -> None:
        """A loss is a spike if it is more than `deviations` standard deviations above the mean."""
        super().__init__(name="spikes")
        self._deviations = deviations
        self.state = tf.Variable(
            tf.zeros([3]),
            trainable=False,
            name="spikes",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        """float32[3]: number of losses, and their exponentially weighted mean and variance. Part of the checkpoint."""

    def is_spike(self, loss: tf.Tensor) -> tf.Tensor:
        """Whether `loss` (float32 scalar, the mean over the whole batch) is a spike. Updates the statistics with it."""
        count, mean, variance = tf.unstack(self.state)
        highest = mean + self._deviations * tf.sqrt(variance)
        spike = (count >= _STEPS) & (loss > highest)
        # A spike enters the statistics as the highest normal loss: its own value would hide the next spike. It must
        # enter them, so that a permanently higher loss becomes the normal one in time.
        change = tf.where(spike, highest, loss) - mean
        weight = 1 / tf.minimum(count + 1, float(_STEPS))
        variance = (1 - weight) * (variance + weight * change**2)
        self.state.assign(tf.stack([count + 1, mean + weight * change, variance]))
        return spike


def restore(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor], *, where: tf.Tensor) -> None:
    """Restores the earlier `values` of `variables` if `where` (bool scalar) is true. Call it in each replica."""

    def in_all(strategy: tf.distribute.Strategy, where: tf.Tensor, *values: tf.Tensor) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable,
                lambda target, earlier, condition: target.assign(tf.where(condition, earlier, target)),
                args=(value, where),
            )

    tf.distribute.get_replica_context().merge_call(in_all, args=(where, *values))
