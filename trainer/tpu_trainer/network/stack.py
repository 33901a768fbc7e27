"""Runs equal layers in a loop over their stacked weights, forward and backward.

A layer is traced, lowered and compiled once, whatever their number. Within it, `Kept` marks the values that the
backward pass needs. A policy says which of them are kept, for all layers, until then. The backward loop runs each layer
again with these in place: XLA removes what computed them, and only what was not kept is computed twice, as with JAX's
`save_only_these_names`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

Weights = dict[str, tf.Tensor]
Layer = Callable[[tf.Tensor, Weights, Weights, "Kept"], tuple[tf.Tensor, tf.Tensor]]
"""(hidden states, weights, scalars, kept) → (hidden states, loss): the last is float32 of a static shape."""


class Kept:
    """The values of a layer that its backward pass needs."""

    def __init__(self, names: Collection[str], values: Mapping[str, tf.Tensor] | None = None) -> None:
        """
        Args:
            names: Those to keep.
            values: Their values in the forward pass, in the backward pass.
        """
        self._names = names
        self._forward = values
        self.values: dict[str, tf.Tensor] = {}
        """Those of this pass."""

    def __call__(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Returns `value`; in the backward pass, what was kept of it."""
        if name not in self._names:
            return value
        if self._forward is None:
            self.values[name] = value
            return value
        return _replaced(value, self._forward[name])

    def stored(self, name: str) -> tf.Tensor | None:
        """Returns the kept value in the backward pass; None: it is to be computed.

        For operations with a gradient of their own, which then need not compute what the gradient uses.
        """
        return None if self._forward is None or name not in self._names else self._forward[name]


@tf.custom_gradient
def _replaced(value: tf.Tensor, by: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    """Returns `by`, with the gradient of `value`."""
    return tf.identity(by), lambda gradient: (gradient, None)


def run_layers(
    layer: Layer,
    hidden: tf.Tensor,
    *,
    weights: Weights,
    scalars: Weights,
    keep: Collection[str] | None,
    factors: Collection[str] = (),
    loss_shape: tuple[int, ...] = (),
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the hidden states after all layers, and the sum of the layers' losses.

    Args:
        layer: A function of static shapes.
        hidden: [B, L, H].
        weights: Name → the weights of all N layers, [N, …]. They get gradients.
        scalars: Name → a scalar of each layer, [N]. They get no gradients.
        keep: Names of the values to keep for the backward pass; None: there is none.
        factors: Names of the weights that the layer gets in the dtype of `hidden`, because it only multiplies with
            them. Until the end of the backward pass, all layers' gradients of them have this dtype, too.
        loss_shape: Shape of a layer's loss.
    """
    loop = _Loop(layer, list(weights), scalars, keep or (), factors, loss_shape)
    if keep is None:
        return loop.forward(hidden, list(weights.values()))[:2]

    @tf.custom_gradient
    def run(hidden: tf.Tensor, *stacks: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        result, loss, inputs, kept = loop.forward(hidden, stacks, keeps=True)

        def gradient(d_result: tf.Tensor, d_loss: tf.Tensor) -> Sequence[tf.Tensor]:
            return loop.backward(d_result, d_loss, inputs=inputs, kept=kept, stacks=stacks)

        return (result, loss), gradient

    return run(hidden, *weights.values())


def run_layers_keeping(
    layer: Layer,
    hidden: tf.Tensor,
    *,
    weights: Weights,
    scalars: Weights,
    keep: Collection[str],
    loss_shape: tuple[int, ...] = (),
) -> tuple[tf.Tensor, Weights]:
    """Returns the hidden states after all layers, and name → what all layers keep, [N, …], without gradients.

    The arguments are those of `run_layers`.
    """
    loop = _Loop(layer, list(weights), scalars, keep, (), loss_shape)
    hidden, _, _, kept = loop.forward(hidden, list(weights.values()), keeps=True)
    return hidden, kept


class _Loop:
    def __init__(
        self,
        layer: Layer,
        names: list[str],
        scalars: Weights,
        keep: Collection[str],
        factors: Collection[str],
        loss_shape: tuple[int, ...],
    ) -> None:
        self._layer = layer
        self._names = names
        self._scalars = scalars
        self._keep = keep
        self._factors = factors
        self._loss_shape = loss_shape

    def _weights(self, stacks: Sequence[tf.Tensor], number: tf.Tensor, dtype: tf.DType) -> list[tf.Tensor]:
        """Returns a layer's weights."""
        weights = []
        for name, stack in zip(self._names, stacks, strict=True):
            weight = stack[number]
            if name in self._factors and dtype != stack.dtype:
                # Without the 0, which the compiler does not recognize, it would convert all layers' weights before the
                # loop, and keep them until the end of the backward pass.
                weight = tf.cast(weight + tf.cast(tf.minimum(number, 0), stack.dtype), dtype)
            weights.append(weight)
        return weights

    def _call(
        self, hidden: tf.Tensor, stacks: Sequence[tf.Tensor], number: tf.Tensor, kept: Kept
    ) -> tuple[tf.Tensor, tf.Tensor]:
        scalars = {name: values[number] for name, values in self._scalars.items()}
        return self._layer(hidden, dict(zip(self._names, stacks, strict=True)), scalars, kept)

    def _kept_specs(self, hidden: tf.Tensor, stacks: Sequence[tf.Tensor]) -> dict[str, tf.TensorSpec]:
        def values(hidden: tf.Tensor, *weights: tf.Tensor) -> dict[str, tf.Tensor]:
            kept = Kept(self._keep)
            self._call(hidden, weights, tf.constant(0), kept)
            return kept.values

        specs = [
            tf.TensorSpec(stack.shape[1:], hidden.dtype if name in self._factors else stack.dtype)
            for name, stack in zip(self._names, stacks, strict=True)
        ]
        function = tf.function(values, autograph=False)
        return function.get_concrete_function(
            tf.TensorSpec(hidden.shape, hidden.dtype), *specs
        ).structured_outputs

    def forward(
        self, hidden: tf.Tensor, stacks: Sequence[tf.Tensor], *, keeps: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None, Weights]:
        """Returns hidden states and loss; with `keeps` also the layers' inputs, [N, B, L, H], and what they keep."""
        count = stacks[0].shape[0]
        specs = self._kept_specs(hidden, stacks) if keeps else {}
        arrays = [_array(spec, count) for spec in specs.values()]
        inputs = _array(hidden, count) if keeps else ()

        def step(number: tf.Tensor, hidden: tf.Tensor, loss: tf.Tensor, inputs: Any, arrays: Any) -> Any:
            kept = Kept(self._keep)
            result, layer_loss = self._call(hidden, self._weights(stacks, number, hidden.dtype), number, kept)
            if keeps:
                inputs = inputs.write(number, hidden)
                arrays = [
                    array.write(number, kept.values[name]) for name, array in zip(specs, arrays, strict=True)
                ]
            return number + 1, result, loss + layer_loss, inputs, arrays

        _, hidden, loss, inputs, arrays = tf.while_loop(
            lambda number, *_: number < count,
            step,
            (tf.constant(0), hidden, tf.zeros(self._loss_shape), inputs, arrays),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        if not keeps:
            return hidden, loss, None, {}
        return (
            hidden,
            loss,
            inputs.stack(),
            {name: array.stack() for name, array in zip(specs, arrays, strict=True)},
        )

    def backward(
        self,
        d_hidden: tf.Tensor,
        d_loss: tf.Tensor,
        *,
        inputs: tf.Tensor,
        kept: Weights,
        stacks: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        """Returns the gradients of the first layer's input and of the stacked weights."""
        count = stacks[0].shape[0]
        gradients = [
            _array(
                tf.TensorSpec(stack.shape[1:], d_hidden.dtype if name in self._factors else stack.dtype),
                count,
            )
            for name, stack in zip(self._names, stacks, strict=True)
        ]

        # Both loops count up from 0, which XLA and compile-check recognize.
        def step(done: tf.Tensor, d_hidden: tf.Tensor, gradients: Any) -> Any:
            number = count - 1 - done
            values = Kept(self._keep, {name: value[number] for name, value in kept.items()})
            hidden, weights = inputs[number], self._weights(stacks, number, d_hidden.dtype)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([hidden, *weights])
                results = self._call(hidden, weights, number, values)
            d_hidden, *d_weights = tape.gradient(
                results,
                [hidden, *weights],
                [d_hidden, d_loss],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            gradients = [
                array.write(number, d_weight) for array, d_weight in zip(gradients, d_weights, strict=True)
            ]
            return done + 1, d_hidden, gradients

        _, d_hidden, gradients = tf.while_loop(
            lambda done, *_: done < count,
            step,
            (tf.constant(0), d_hidden, gradients),
            maximum_iterations=count,
            parallel_iterations=1,
        )
        return [
            d_hidden,
            *(tf.cast(array.stack(), stack.dtype) for array, stack in zip(gradients, stacks, strict=True)),
        ]


def _array(element: Any, count: int) -> tf.TensorArray:
    return tf.TensorArray(element.dtype, size=count, element_shape=element.shape, clear_after_read=False)
