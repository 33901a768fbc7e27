"""Loss spikes: updates whose loss is far above that of the steps before, left out.

A single bad batch can throw a model back by thousands of steps. Leaving out its update costs one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

_STEPS = 64
"""Steps that the mean and the deviation look back on, about; and those at the start that are never left out."""


class SpikeGuard(tf.Module):
    """Decides, on the device, which updates to leave out."""

    def __init__(self, deviations: float) -> None:
        """
        Args:
            deviations: How many standard deviations above the mean a loss is a spike.
        """
        super().__init__(name="spikes")
        self._deviations = deviations
        self.state = tf.Variable(
            tf.zeros([3]),
            trainable=False,
            name="spikes",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        """float32[3]: losses seen; their mean and variance, recent ones weighing more. Part of the checkpoint."""

    def is_spike(self, loss: tf.Tensor) -> tf.Tensor:
        """bool: whether `loss` (float32, the mean over the whole batch) is one; takes it into account from then on."""
        seen, mean, variance = tf.unstack(self.state)
        highest = mean + self._deviations * tf.sqrt(variance)
        spike = (seen >= _STEPS) & (loss > highest)
        # A spike counts for no more than what just is none: it would hide the next one. But it counts, so that a loss
        # that stays high is taken for the usual one in time.
        change = tf.where(spike, highest, loss) - mean
        weight = 1 / tf.minimum(seen + 1, float(_STEPS))
        variance = (1 - weight) * (variance + weight * change**2)
        self.state.assign(tf.stack([seen + 1, mean + weight * change, variance]))
        return spike


def restore(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor], *, where: tf.Tensor) -> None:
    """Restores the earlier `values` of `variables` if `where` (a bool scalar) is true; called in each replica."""

    def in_all(strategy: tf.distribute.Strategy, where: tf.Tensor, *values: tf.Tensor) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable,
                lambda own, earlier, condition: own.assign(tf.where(condition, earlier, own)),
                args=(value, where),
            )

    tf.distribute.get_replica_context().merge_call(in_all, args=(where, *values))
