"""A running mean of the weights, which often predicts better than the last weights (Polyak and Juditsky, 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import tensorflow as tf

from tpu_trainer.network.initial_values import InitialValues


class WeightAverage:
    """The exponentially weighted mean of a network's weights, kept on the devices."""

    def __init__(
        self, *, trained: Mapping[str, tf.Variable], mean: Mapping[str, tf.Variable], decay: float
    ) -> None:
        """
        Args:
            trained: Name → variable that is trained.
            mean: Name → variable that stores its mean.
            decay: Weight of the previous mean, below 1; the new weights get the rest.
        """
        if trained.keys() != mean.keys():
            raise ValueError(f"names differ: {sorted(trained.keys() ^ mean.keys())}")
        self.weights = mean
        self.pairs = [(mean[name], variable) for name, variable in trained.items()]
        """(mean, weight) of each weight."""
        self._decay = decay

    def start(self, initial: InitialValues | None = None) -> None:
        """Sets the mean to the current weights, or those of `initial`."""
        initial = initial or InitialValues()
        for mean, variable in self.pairs:
            initial.copy(variable, target=mean)

    def update(self, updates: tf.Tensor) -> None:
        """Adds the current weights to the mean after `updates` (integer scalar) updates. Call it in each replica."""
        updates = tf.cast(updates, tf.float32)
        # The decay is lower at the start, as in TensorFlow's ExponentialMovingAverage with num_updates.
        share = 1 - tf.minimum(self._decay, (1 + updates) / (10 + updates))

        def in_all(strategy: tf.distribute.Strategy, share: tf.Tensor) -> None:
            for mean, variable in self.pairs:
                strategy.extended.update(
                    mean,
                    lambda mean_value, value, share: mean_value.assign_add((value - mean_value) * share),
                    args=(variable, share),
                )

        tf.distribute.get_replica_context().merge_call(in_all, args=(share,))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the trained network has the mean's weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for mean, variable in self.pairs:
            value = variable.numpy()
            variable.assign(mean)
            mean.assign(value)
