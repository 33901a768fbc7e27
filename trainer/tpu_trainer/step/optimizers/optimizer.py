"""What all optimizers share: the step counter, the slots, weight decay, and an update in every replica."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from tpu_trainer.network.initial_values import MakeVariable
from tpu_trainer.network.weights import STACKED

Slots = dict[str, tf.Variable]


class Progress(NamedTuple):
    """Where training is: float32 scalars."""

    rate: tf.Tensor
    """The learning rate."""
    update: tf.Tensor
    """The number of this update, counted from 1."""


class UpdateRule(Protocol):
    """An optimizer's formula for a single weight, or for the same weight of all layers at once.

    It treats leading dimensions besides the `own_axes` as if each of their elements were a variable of its own.
    """

    rate_factor: float
    """The rule's learning rate, as a multiple of the schedule's."""

    def slot_shapes(self, shape: Sequence[int], axes: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Returns name → shape of the slots of a weight, which start at 0; `axes` are its `own_axes`."""

    def change(
        self, weight: tf.Tensor, gradient: tf.Tensor, slots: Slots, *, progress: Progress, axes: Sequence[int]
    ) -> tf.Tensor:
        """Updates the slots with a gradient; returns what to subtract from the weight, without weight decay."""


def own_dimensions(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the dimensions of a weight in one layer: a name that begins with `layers.` is a stack of all layers'."""
    return tuple(shape[1:] if name.startswith(STACKED) else shape)


def own_axes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the axes, from the end, of a weight's own matrix or vector.

    Example:
        layers.mlp.up.weight       [12, 64, 16]      (-2, -1)
        layers.experts.up.weight   [12, 8, 64, 16]   (-2, -1), the matrix of an expert
        layers.mlp.up.bias         [12, 64]          (-1,)
        embeddings.tokens.weight   [1000, 16]        (-2, -1)
    """
    return tuple(range(-min(2, len(own_dimensions(name, shape))), 0))


class Optimizer:
    """Updates weights by a rule for each, with decoupled weight decay."""

    def __init__(
        self,
        *,
        weights: Mapping[str, tf.Variable],
        rules: Mapping[str, UpdateRule],
        schedule: Callable[[tf.Tensor], tf.Tensor],
        weight_decay: float,
        decayed: Collection[str],
        make_variable: MakeVariable,
    ) -> None:
        """
        Args:
            weights: The trained variables by name.
            rules: The rule of each weight.
            schedule: Maps the number of previous updates to the learning rate.
            weight_decay: Each update subtracts this times the learning rate from decayed weights, relative to them.
            decayed: Names of the weights that decay.
            make_variable: Creates the slots, named optimizer/<slot>/<weight>.
        """
        self.step: tf.Variable = make_variable(
            "optimizer/step", [], lambda: np.int64(0), trainable=False, dtype=tf.int64
        )
        """Number of updates."""
        self._weights = weights
        self._rules = rules
        self._schedule = schedule
        self._weight_decay = weight_decay
        self._decayed = frozenset(decayed)
        self._axes = {name: own_axes(name, weight.shape) for name, weight in weights.items()}
        self._slots = {
            name: {
                slot: make_variable(
                    f"optimizer/{slot}/{name}",
                    shape,
                    lambda shape=shape: np.zeros(shape, np.float32),
                    trainable=False,
                )
                for slot, shape in rules[name].slot_shapes(weight.shape, self._axes[name]).items()
            }
            for name, weight in weights.items()
        }

    def slots(self) -> dict[str, tf.Variable]:
        """Returns <slot>/<weight> → variable."""
        return {
            f"{slot}/{name}": variable
            for name, slots in self._slots.items()
            for slot, variable in slots.items()
        }

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Updates the weights and counts the step. Call it in each replica.

        Args:
            gradients: Those of the weights, in their order, equal in all replicas.
        """
        rate = self._schedule(self.step)
        update = tf.cast(self.step + 1, tf.float32)

        def in_all(
            strategy: tf.distribute.Strategy, rate: tf.Tensor, update: tf.Tensor, *gradients: tf.Tensor
        ) -> None:
            for (name, weight), gradient in zip(self._weights.items(), gradients, strict=True):
                strategy.extended.update(
                    weight, self._update(name), args=(gradient, rate, update, *self._slots[name].values())
                )
            strategy.extended.update(self.step, lambda step: step.assign_add(1))

        tf.distribute.get_replica_context().merge_call(in_all, args=(rate, update, *gradients))

    def _update(self, name: str) -> Callable[..., None]:
        """Returns the function that updates a weight and its slots on one device."""
        rule, decay = self._rules[name], self._weight_decay if name in self._decayed else 0.0

        def update(
            weight: tf.Variable,
            gradient: tf.Tensor,
            rate: tf.Tensor,
            update: tf.Tensor,
            *variables: tf.Variable,
        ) -> None:
            rate = rate if rule.rate_factor == 1 else rate * rule.rate_factor
            slots = dict(zip(self._slots[name], variables, strict=True))
            change = rule.change(
                tf.convert_to_tensor(weight),
                gradient,
                slots,
                progress=Progress(rate, update),
                axes=self._axes[name],
            )
            if decay:
                weight.assign_sub(weight * decay * rate)
            weight.assign_sub(change)

        return update
